"""The programs of README and ``docs/`` that need no engine, as printed, on real Ray; all: ``make as-printed``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.as_printed.pages import PAGES, programs_of
from tests.as_printed.programs import run

PROGRAMS = [program for page in PAGES for program in programs_of(page) if not program.needs_engine]


@pytest.mark.ray
@pytest.mark.parametrize("program", PROGRAMS, ids=[program.place for program in PROGRAMS])
def test_it_runs_as_printed(program, tmp_path):
    """In a folder, a home and an environment of its own, with nothing but what its section shows."""
    done = run(program, tmp_path, python=Path(sys.executable), deadline_s=120)
    assert done.ok, done.said
    assert "Traceback" not in done.said
    assert "Deprecat" not in done.said


@pytest.mark.ray
def test_a_program_that_fails_is_told_by_its_block(tmp_path):
    """The first of two blocks ran, and the traceback names the line of the page."""
    [program] = [program for program in PROGRAMS if len(program.blocks) > 1][:1]
    *whole, last = program.blocks
    broken = type(program)(
        blocks=(*whole, type(last)(**{**vars_of(last), "text": "undefined_name\n"})), environment={}
    )
    done = run(broken, tmp_path, python=Path(sys.executable), deadline_s=120)
    assert (done.blocks, done.blocks_ok) == (len(program.blocks), len(whole))
    assert f"line {last.line}, in <module>" in done.said


def vars_of(block):
    return {name: getattr(block, name) for name in block.__dataclass_fields__}
