"""The lines that hold the house: imports are free, names are complete, decisions stay pure."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import rayguard
from tests import architecture_figures as house
from tests.architecture_references import stale_paths, stale_references

ROOT = Path(rayguard.__file__).parent
DOCUMENTS = sorted([ROOT.parent / "README.md", *(ROOT.parent / "docs").rglob("*.md")])
MOST_LINES, MOST_FILES, MOST_ANY = 300, 20, 607
# Public classes that share a name, at most five, each with the reason why no other name would be plainer.
SAME_NAME: dict[str, str] = {}
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
    assert source.count("\n") <= MOST_LINES, f"{path} is too long: has it one subject?"


@pytest.fixture(scope="module")
def texts():
    """The package's files and what stands in them."""
    return house.sources()


@pytest.fixture(scope="module")
def trees(texts):
    """The same, read, by the modules' names."""
    return {house.module_of(path): ast.parse(text) for path, text in texts.items()}


def test_no_folder_holds_more_files_than_one_looks_through():
    """A folder is a subject; one of 50 files is a drawer."""
    counts = house.files_by_folder()
    assert {str(folder): count for folder, count in counts.items() if count > MOST_FILES} == {}


def test_no_file_can_be_reached_from_itself(trees):
    """No circles: none within functions or for types alone either."""
    assert house.circles(house.imports(trees)) == []


def test_one_class_name_means_one_thing(trees):
    """So that a name in a log or a traceback can be looked up."""
    assert len(SAME_NAME) <= 5
    assert {name: where for name, where in house.class_names(trees).items() if name not in SAME_NAME} == {}


def test_private_names_of_others_stand_in_their_seams_alone(texts):
    """Where Ray or vLLM moves one, one file is to be changed, and one capability is off."""
    assert house.private_names(texts) == []


def test_types_are_said(texts):
    """A ratchet: lower it when you take some away, and never raise it."""
    assert house.any_count(texts) <= MOST_ANY


def test_what_a_docstring_points_to_exists(texts):
    """A reader who follows a name finds what it names."""
    assert stale_references(texts) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT.parent)))
def test_the_paths_that_a_document_names_exist(document):
    """As above, for who reads the documents first."""
    assert stale_paths(document) == []


def test_a_stale_reference_is_found():
    """The test of the test: a renamed module, a name that went, a bare name in a head."""
    path = ROOT / "faults" / "invented.py"
    head = "What is ``gone_file``, and ``rayguard.faults.gone``, and ``rayguard.faults.fault.gone``, and ``index``."
    found = stale_references({**house.sources(), path: f'"""{head}"""'})
    names = ("gone_file", "rayguard.faults.fault.gone", "rayguard.faults.gone")
    assert found == [f"rayguard/faults/invented.py: {name}" for name in names]


def test_test_modules_have_names_of_their_own():
    """Pytest imports them by their bare names: of two alike the second cannot be collected."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
