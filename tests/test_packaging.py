"""What is built, what an import loads, and what the packages say they export."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = {"stopkit": "stopkit", "normalizer": "stopkit/normalizer", "adapters": "stopkit/adapters"}
"""Folders of the tree, and where they are installed."""
PUBLIC = ["stopkit", "stopkit.adapters", "stopkit.cli", "stopkit.normalizer"]
HEAVY = {
    "anthropic",
    "anyio",
    "httpx",
    "httpx2",
    "mcp",
    "openai",
    "opentelemetry",
    "psycopg",
    "rich",
    "sqlalchemy",
    "tenacity",
    "typer",
}


def sources() -> dict[str, Path]:
    """Every module of the tree, by where it is installed."""
    return {
        f"{LAYERS[folder]}/{module.relative_to(ROOT / folder).as_posix()}": module
        for folder in LAYERS
        for module in sorted((ROOT / folder).rglob("*.py"))
    }


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel, both built once from a copy of the tree."""
    copy = tmp_path_factory.mktemp("tree") / "stopkit"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", *LAYERS):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return out


def names_in_wheel(built: Path) -> list[str]:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        return opened.namelist()


def test_the_wheel_holds_every_module_and_nothing_else(built: Path) -> None:
    names = names_in_wheel(built)
    assert len(names) == len(set(names))
    code = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert code == {*sources(), "stopkit/py.typed"}


def test_the_wheel_puts_one_name_at_the_top(built: Path) -> None:
    tops = {name.split("/")[0] for name in names_in_wheel(built)}
    (info,) = (top for top in tops if top != "stopkit")
    assert info.startswith("stopkit-")
    assert info.endswith(".dist-info")
    (wheel,) = built.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        assert "stopkit = stopkit.cli:main" in opened.read(f"{info}/entry_points.txt").decode()
        assert f"{info}/licenses/LICENSE" in opened.namelist()
        for name, source in sources().items():
            assert opened.read(name) == source.read_bytes()


def test_the_sdist_holds_every_module(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        names = [name.partition("/")[2] for name in opened.getnames()]
    modules = {source.relative_to(ROOT).as_posix() for source in sources().values()}
    assert {name for name in names if name.endswith(".py")} - {"setup.py"} == modules
    assert {"LICENSE", "README.md", "pyproject.toml", "stopkit/py.typed"} <= set(names)


def test_the_wheel_works_where_nothing_of_the_tree_is(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "site")
    code = (
        "import stopkit, stopkit.adapters\n"
        "from stopkit.normalizer import normalize\n"
        "for api in ('anthropic.messages', 'openai.responses', 'openai.chat'):\n"
        "    assert normalize([{'role': 'user', 'content': 'x'}], api=api).sendable\n"
        "print(stopkit.__file__)\n"
    )
    # Ahead of site-packages, where the editable install lives.
    told = run_python(code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert Path(told.strip()).is_relative_to(tmp_path)


def run_python(code: str, cwd: Path, **env: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_folder_with_modules_is_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {os.path.dirname(name).replace("/", ".") for name in sources()}
    assert sorted(declared["packages"]) == sorted(folders)


# --- what an import loads ------------------------------------------------------------------------


def loaded_by(code: str, cwd: Path) -> set[str]:
    """The top names of all modules that are loaded after `code`."""
    told = run_python(f"{code}\nimport sys\nprint(*sys.modules)", cwd)
    return {name.partition(".")[0] for name in told.split()}


def test_the_normalizer_loads_no_client_and_no_database(tmp_path: Path) -> None:
    assert not loaded_by("import stopkit.normalizer", tmp_path) & HEAVY


@pytest.mark.parametrize("api", ["anthropic.messages", "openai.responses", "openai.chat"])
def test_work_on_a_history_loads_none_either(api: str, tmp_path: Path) -> None:
    code = (
        "from stopkit.normalizer import check, normalize\n"
        "history = [{'role': 'assistant', 'content': ''}]\n"
        f"check(history, api={api!r}), normalize(history, api={api!r}).changes\n"
    )
    assert not loaded_by(code, tmp_path) & HEAVY


def test_a_dialect_is_loaded_when_it_is_asked_for(tmp_path: Path) -> None:
    code = "import stopkit.normalizer, sys\nprint(*(n for n in sys.modules if '.dialects.' in n))"
    assert run_python(code, tmp_path).split() == []


def test_stopkit_knows_no_layer_above_it(tmp_path: Path) -> None:
    code = "import stopkit, sys\nprint(*(name for name in sys.modules if 'stopkit.' in name))"
    above = ("stopkit.normalizer", "stopkit.adapters", "stopkit.cli")
    assert not [name for name in run_python(code, tmp_path).split() if name.startswith(above)]


# --- exports -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLIC)
def test_exports_are_sorted_and_importable(name: str) -> None:
    module = importlib.import_module(name)
    exported = module.__all__
    constants = [export for export in exported if export.isupper()]
    classes = [export for export in exported if export[0].isupper() and not export.isupper()]
    functions = [export for export in exported if not export[0].isupper()]
    assert exported == [*sorted(constants), *sorted(classes), *sorted(functions)]
    assert len(exported) == len(set(exported))
    for export in exported:
        assert getattr(module, export) is not None


@pytest.mark.parametrize("name", PUBLIC)
def test_no_public_name_is_missing_from_the_exports(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    found: set[str] = set()
    top = ast.parse(Path(module.__file__).read_text()).body
    # What is imported when it is first asked for is named under TYPE_CHECKING.
    lazy = [inner for node in top if isinstance(node, ast.If) for inner in node.body]
    for node in [*top, *lazy]:
        match node:
            case ast.ImportFrom(module=source, names=names) if str(source).startswith("stopkit"):
                found |= {alias.asname or alias.name for alias in names}
            case ast.FunctionDef(name=defined) | ast.ClassDef(name=defined):
                found.add(defined)
    # The command's own helpers are nobody's library.
    assert {public for public in found if not public.startswith("_")} == set(module.__all__)


def test_public_errors_name_the_tree_they_stand_in() -> None:
    from stopkit.normalizer import EvidenceError, HistoryError, UnknownApiError

    for error in (EvidenceError, UnknownApiError):
        assert issubclass(error, HistoryError)
    assert issubclass(HistoryError, ValueError)


def test_no_layer_is_importable_without_the_distributions_name(tmp_path: Path) -> None:
    code = (
        "import importlib.util\n"
        "print([n for n in ('normalizer', 'adapters') if importlib.util.find_spec(n)])"
    )
    assert run_python(code, tmp_path).strip() == "[]"
