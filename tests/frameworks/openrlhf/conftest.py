"""The small interface, loaded anew: one that may be changed. What is told stays with each test."""

from __future__ import annotations

import importlib.util

import pytest

from rayguard.engine.supervision import slot
from tests.frameworks.openrlhf import small_openrlhf


@pytest.fixture
def module():
    spec = importlib.util.spec_from_file_location("small_openrlhf_anew", small_openrlhf.__file__)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(slot, "find_spec", lambda _: None)  # no process that imports vLLM waits beside
