"""A stage for commands."""

from __future__ import annotations

import pytest
from small_programs import Stage


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)
