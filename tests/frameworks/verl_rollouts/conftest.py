"""What the tests of verl's rollouts share."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tests.frameworks.verl_rollouts import small_rollouts as small


@pytest.fixture
def module(monkeypatch):
    """The small interface, loaded anew: one that may be changed."""
    name = "small_rollouts_anew"
    spec = importlib.util.spec_from_file_location(name, small.__file__)
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, found)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Incidents of these tests' own."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
