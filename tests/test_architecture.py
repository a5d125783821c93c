"""Dependencies point downward only, and files stay readable."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "multitoken"
# A room may import from itself, from the rooms listed, and from the two leaf modules.
LEAVES = {"errors", "storage"}
ALLOWED = {
    "models": set(),
    "engine": {"models"},
    "methods": {"engine", "models"},
    "session": {"methods", "engine", "models"},
    "training": {"session", "methods", "engine", "models"},
    "api": {"session", "methods", "engine", "models"},
    "bench": {"session", "methods", "engine", "models"},
    "server": {"session", "methods", "engine", "models"},
    "cli": {"api", "bench", "server", "training", "session", "methods", "engine", "models"},
}
FILES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downward(path):
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if room in {"__init__", "__main__"} | LEAVES:
        return
    for module in imports(path):
        parts = module.split(".")
        if parts[0] == "multitoken" and len(parts) > 1:
            assert parts[1] in ALLOWED[room] | LEAVES | {room}, f"{room} imports {module}"
        if room in {"engine", "methods"}:
            assert parts[0] != "transformers", f"{room} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short(path):
    assert len(path.read_text().splitlines()) <= 400


def test_test_files_have_names_of_their_own():
    """Without packages, two test files of one name cannot be collected together."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
