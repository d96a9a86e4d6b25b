"""Every promise in docs/contract.md names the tests that hold it, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CONTRACT = HERE.parents[1] / "docs" / "contract.md"
ROWS = [
    line
    for line in CONTRACT.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| promise")
]


def names_in(path):
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip()[:40] for row in ROWS])
def test_a_promise_is_held(row):
    _, promise, held, _ = row.split("|")
    assert promise.strip().endswith(".")
    tests = re.findall(r"`([\w.]+)::(\w+)`", held)
    assert tests
    for file, name in tests:
        assert name in names_in(HERE / file)


def test_there_are_promises():
    assert len(ROWS) > 30
