"""Every block of README and ``docs/`` is what it says it is; the programs among them: ``test_programs_ray``."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.as_printed.checks import problem_of_block, problem_of_runbook
from tests.as_printed.commands import commands_of, problem_of
from tests.as_printed.pages import PAGES, RUNBOOKS, blocks_of, programs_of

BLOCKS = [block for page in PAGES for block in blocks_of(page)]


@pytest.fixture
def with_a_log(tmp_path, monkeypatch):
    """The page's own example is there."""
    monkeypatch.chdir(tmp_path)
    Path("train.log").touch()


def test_every_block_is_what_it_says_it_is(with_a_log):
    """A renamed command, option, target, extra or alert is found here, and not by a reader."""
    assert {block.place: found for block in BLOCKS if (found := problem_of_block(block))} == {}
    assert sum(block.language == "python" for block in BLOCKS) >= 7


def test_a_runbook_asks_for_commands_that_exist(with_a_log):
    """Who reads it at night types what it says."""
    assert {page.name: found for page in RUNBOOKS if (found := problem_of_runbook(page))} == {}
    assert sum(len(commands_of(page)) for page in RUNBOOKS) >= 30


def test_the_answer_in_the_readme_is_what_the_command_says(tmp_path):
    """``rayguard diagnose train.log`` on verl's own failure, up to where the page has ``...``."""
    [block] = [b for b in BLOCKS if b.page == "README.md" and "rayguard diagnose train.log" in b.text]
    printed = block.text.split("\n", 1)[1].split("...\n")[0].splitlines()
    (tmp_path / "train.log").write_text(
        "Traceback (most recent call last):\n"
        '  File "/opt/verl/protocol.py", line 760, in chunk\n'
        "    assert len(self) % chunks == 0, (\n"
        "AssertionError: only support equal chunk. Got size of DataProto 512 and chunk 6.\n"
    )
    command = [sys.executable, "-m", "rayguard", "diagnose", "train.log"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert printed == run.stdout.splitlines()[: len(printed)]


def test_a_traceback_of_a_program_names_the_lines_of_its_page():
    """Each line of a program stands where it stands on the page, and nothing is added."""
    for page in PAGES:
        lines = page.read_text().splitlines()
        for program in programs_of(page):
            code = [(i, line) for i, line in enumerate(program.source.splitlines()) if line.strip()]
            assert code == [(i, lines[i]) for i, _ in code]


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("rayguard incidents --lats 5", "--lats"),
        ("rayguard incident", "incident"),
        ("rayguard catalog show", "missing"),
        ("make as-painted", "as-painted"),
        ("ray start --haed", "haed"),
        ("pip install 'rayguard[sglang]'", "extra"),
        ("python -m rayguard.nothing", "nothing"),
        ("frobnicate", "frobnicate"),
        ("rayguard status && rayguard stauts", "stauts"),
    ],
)
def test_a_command_that_nobody_could_type_is_found(command, wrong):
    """The check refuses what is wrong."""
    assert re.search(wrong, problem_of(command), re.IGNORECASE)


@pytest.mark.parametrize(
    ("language", "text"),
    [("", "x"), ("console", "make demo"), ("yaml", "a: [1"), ("promql", "up == 1"), ("bash", "make demo")],
)
def test_a_block_that_is_not_what_it_says_is_found(language, text):
    """As above; one without a language would be checked by nobody."""
    assert problem_of_block(replace(BLOCKS[0], language=language, text=text))
