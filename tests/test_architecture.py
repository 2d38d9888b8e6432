"""The lines that hold the house: imports are free, names are complete, decisions stay pure."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import rayguard

ROOT = Path(rayguard.__file__).parent
HEAVY = (
    "ray",
    "torch",
    "vllm",
    "pydantic",
    "prometheus_client",
    "psutil",
    "tenacity",
    "typer",
    "rich",
    "yaml",
)


def loaded_after(statement):
    """Return the heavy packages that a fresh interpreter has loaded after ``statement``."""
    code = f"{statement}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return run.stdout.split()


def test_importing_rayguard_loads_the_standard_library_only():
    """Every Ray worker pays for what an import loads."""
    assert loaded_after("import rayguard") == []


@pytest.mark.parametrize("name", ["GuardPolicy", "RayguardError", "Incident", "EngineSettings"])
def test_a_value_of_the_public_api_loads_nothing_heavy(name):
    """Writing a policy costs no Ray and no torch."""
    assert not {"ray", "torch", "vllm"} & set(loaded_after(f"import rayguard; rayguard.{name}"))


def test_every_public_name_is_there_and_listed_once():
    """``__all__`` is complete and sorted, and each name has a line in the README and in the typing test."""
    assert rayguard.__all__ == sorted(rayguard.__all__)
    readme = (ROOT.parent / "README.md").read_text()
    typed = (ROOT.parent / "tests/typing/api.py").read_text()
    for name in rayguard.__all__:
        assert getattr(rayguard, name) is not None
        if not name.startswith("__"):
            assert f"`{name}`" in readme, f"{name} has no line in the README"
            assert name in typed, f"{name} is not type-checked in tests/typing/api.py"


def test_an_unknown_name_is_an_attribute_error():
    """As of any module."""
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = rayguard.nonsense


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_file_says_what_it_is_for_and_stays_readable(path):
    """A docstring at the head, and no file that has outgrown one subject."""
    source = path.read_text()
    assert ast.get_docstring(ast.parse(source)), f"{path} has no docstring"
    assert source.count("\n") <= 330, f"{path} is too long: has it one subject?"


def test_test_modules_have_names_of_their_own():
    """Pytest imports them by their bare names: of two alike the second cannot be collected."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
