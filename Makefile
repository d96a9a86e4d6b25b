# Needs python3 (3.11 or newer) and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := .bench-venv

.PHONY: demo test lint bench docs clean

demo: $(VENV)/.installed
	@$(BIN)/python examples/demo.py
	@$(BIN)/python examples/own_loop.py

test: $(VENV)/.installed-test
	@$(BIN)/python -m pytest -n auto

lint: $(VENV)/.installed-lint
	@sh .ci/lint $(abspath $(BIN))

bench: $(BENCH)/.installed
	@$(BENCH)/bin/python benchmarks/histories.py --out docs/benchmarks.md --plot docs/img/histories.svg
	@$(BENCH)/bin/python benchmarks/stop.py

docs: $(VENV)/.installed
	@$(BIN)/python tests/rules_table.py > docs/rules.md

clean:
	rm -rf $(VENV) $(BENCH) build dist *.egg-info

$(VENV)/.installed: pyproject.toml
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -c 'import sys; sys.exit("python 3.11 or newer, please") if sys.version_info < (3, 11) else 0'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --config-settings editable_mode=lenient
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group test
	@touch $@

$(VENV)/.installed-lint: $(VENV)/.installed-test
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group lint
	@touch $@

$(BENCH)/.installed: pyproject.toml benchmarks/requirements.txt
	@echo "setting up $(BENCH) with the peers (once)"
	@test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	@$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --requirement benchmarks/requirements.txt --editable . --config-settings editable_mode=lenient
	@touch $@
