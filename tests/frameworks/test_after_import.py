"""Hooks reach what is imported later, and nobody's import is another one for it."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
import textwrap
import zipfile

import pytest

from rayguard import harmless
from rayguard.frameworks import startup
from rayguard.frameworks.after_import import after_import


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder on the path, whose modules are forgotten again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_function_runs_once_after_the_module_is_whole(modules):
    """Not before its last line; a module that is there already is not waited for."""
    (modules / "rg_late.py").write_text("first = 1\nlast = 2\n")
    seen = []
    after_import("rg_late", lambda module: seen.append((module.__name__, module.last)))
    assert seen == []
    late = importlib.import_module("rg_late")
    assert seen == [("rg_late", 2)]
    after_import("rg_late", lambda module: seen.append(module is late))
    assert seen == [("rg_late", 2), True]
    importlib.reload(late)
    assert len(seen) == 2


def test_the_module_looks_as_it_would(modules):
    """Its loader, its file, its source, and its place in a package."""
    package = modules / "rg_pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("def f():\n    return 1\n")
    (modules / "rg_other.py").write_text("")
    after_import("rg_pack.inner", lambda module: setattr(module, "patched", True))
    inner, other = importlib.import_module("rg_pack.inner"), importlib.import_module("rg_other")
    assert inner.patched
    assert type(inner.__loader__) is type(other.__loader__)
    assert "exec_module" not in vars(inner.__loader__)
    assert inner.__spec__.origin == str(package / "inner.py")
    assert inspect.getsource(inner.f) == "def f():\n    return 1\n"
    assert sys.modules["rg_pack"].inner is inner


def test_what_goes_wrong_in_a_function_is_counted_and_the_others_run(modules):
    """The user's import goes on."""
    (modules / "rg_bad.py").write_text("x = 1\n")
    seen, before = [], harmless.errors["hook after an import"]
    after_import("rg_bad", lambda module: module.nothing)
    after_import("rg_bad", lambda module: seen.append(module.x))
    assert importlib.import_module("rg_bad").x == 1
    assert seen == [1]
    assert harmless.errors["hook after an import"] == before + 1


def test_a_module_that_fails_or_is_not_there_fails_as_it_would(modules):
    """And a function waits for the time that it does not."""
    (modules / "rg_failing.py").write_text("raise ValueError('theirs')\n")
    seen = []
    after_import("rg_failing", seen.append)
    after_import("rg_missing", seen.append)
    with pytest.raises(ValueError, match="theirs"):
        importlib.import_module("rg_failing")
    with pytest.raises(ModuleNotFoundError, match="rg_missing"):
        importlib.import_module("rg_missing")
    assert seen == []
    (modules / "rg_failing.py").write_text("now = 'well'\n")
    importlib.invalidate_caches()
    importlib.import_module("rg_failing")
    assert [module.now for module in seen] == ["well"]


def test_a_module_out_of_a_zip_is_left_alone(modules):
    """One loader has all modules of a zip: nothing is put on it, which is counted."""
    with zipfile.ZipFile(modules / "x.zip", "w") as packed:
        packed.writestr("rg_zipped.py", "x = 1\n")
    sys.path.insert(0, str(modules / "x.zip"))
    seen, before = [], harmless.errors["hook after an import"]
    try:
        after_import("rg_zipped", seen.append)
        assert importlib.import_module("rg_zipped").x == 1
    finally:
        sys.path.remove(str(modules / "x.zip"))
    assert seen == []
    assert harmless.errors["hook after an import"] == before + 1


# -- from the start of a Python


def started(code, *options, path="", env=None):
    """Run ``code`` in a Python that was started with the hooks; return what it printed."""
    own = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", startup.SWITCH}}
    own |= {"PYTHONPATH": path} if path else {}
    own |= env or {}
    own |= startup.environment(own)
    command = [sys.executable, *options, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


FINDER = (
    "import sys; print(any(type(f).__module__ == 'rayguard.frameworks.after_import' for f in sys.meta_path))"
)


def test_every_python_of_a_command_has_the_hooks_and_few_imports():
    """Nothing heavy is loaded before anything of a framework is."""
    heavy = "print(*[m for m in ('torch', 'ray', 'transformers', 'pydantic', 'psutil') if m in sys.modules])"
    assert started(f"{FINDER}; {heavy}")[0] == ["True"]


def test_the_users_own_sitecustomize_still_runs_and_is_what_is_imported(tmp_path):
    """Also where it fails: Python tells of it in its own words, and the hooks are there."""
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = __name__\nown = 1\n")
    printed, _ = started(
        f"{FINDER}; import sitecustomize; print(theirs, sitecustomize.own)", path=str(tmp_path)
    )
    assert printed == ["True", "sitecustomize", "1"]
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('in theirs')\n")
    printed, errors = started(FINDER, path=str(tmp_path))
    assert printed == ["True"]
    assert "in theirs" in errors


@pytest.mark.parametrize("option", ["-I", "-S", "-E"])
def test_a_python_that_wants_no_environment_has_no_hooks(option):
    """It is started as ever."""
    printed, errors = started(FINDER, option)
    assert (printed, errors) == (["False"], "")


def test_a_python_without_rayguard_is_started_as_ever(tmp_path):
    """Another environment's interpreter gets our path too."""
    (tmp_path / "rayguard.py").write_text("raise ImportError('another of this name')\n")
    printed, errors = started("print('well')", path=str(tmp_path))
    assert (printed, errors) == (["well"], "")


def test_the_environment_is_added_to_and_can_be_refused(tmp_path):
    """The user's path stays behind ours, no empty piece comes in, and twice is once."""
    ours = str(startup.ON_PATH)
    assert startup.environment({}) == {"PYTHONPATH": ours, startup.SWITCH: "on"}
    added = startup.environment({"PYTHONPATH": f"{tmp_path}:", "HOME": "/"})
    assert added == {"PYTHONPATH": f"{ours}:{tmp_path}", startup.SWITCH: "on"}
    assert startup.environment(added) == added
    assert startup.environment({startup.SWITCH: " OFF "}) == {}
    assert started(FINDER, env={startup.SWITCH: "off"})[0] == ["False"]
    assert sorted(path.name for path in startup.ON_PATH.glob("*.py")) == ["__init__.py", "sitecustomize.py"]


def test_each_hook_is_there():
    """A name in the table that was moved would only be counted, in a user's run."""
    for hook in startup.HOOKS.values():
        place, _, name = hook.partition(":")
        assert callable(getattr(importlib.import_module(place), name))
