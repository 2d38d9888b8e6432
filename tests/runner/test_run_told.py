"""What ``rayguard run`` tells afterwards, and beforehand: JSON, the journal, a dry run, its help."""

from __future__ import annotations

import json
import sys

from test_published_runs import CHUNKED
from test_run_command import LOST


def test_no_secret_of_a_command_line_reaches_the_journal(stage):
    """Others read it."""
    stage.easyr1("trainer.api_key=abcd1234efgh", story=f"fail({LOST!r})")
    assert all("abcd1234" not in one.target for one in stage.incidents())
    assert len(stage.incidents()) == 2


def test_the_story_is_told_to_programs_too(stage):
    """One line of JSON, in a file or on stderr."""
    ran = stage.easyr1(story=f"if life == 0:\n    fail({CHUNKED!r})", options=["--json", "-"])
    told = json.loads(ran.stderr.splitlines()[-1])
    assert (told["code"], told["restarts"], told["recovered"], told["framework"]) == (0, 1, True, "EasyR1")
    assert told["lives"][1]["changed"] == ["worker.rollout.enable_chunked_prefill=false"]
    assert told["lost_s"] > 0


def test_a_dry_run_says_what_would_be_done_and_starts_nothing(stage):
    """The whole command line, ready to be pasted."""
    log = stage.folder / "train.log"
    log.write_text(CHUNKED)
    ran = stage.easyr1(options=["--dry-run", log, "--json", "told"])
    assert (ran.returncode, stage.lives()) == (0, [])
    assert ran.stdout.splitlines()[-1].endswith(
        b"verl.trainer.main worker.rollout.enable_chunked_prefill=false"
    )
    told = json.loads((stage.folder / "told").read_text())
    assert told["changed"] == ["worker.rollout.enable_chunked_prefill=false"]
    assert stage.run(sys.executable, "x.py", options=["--dry-run", "no.log"]).returncode == 125


def test_help_teaches(stage):
    """With examples, and the exit codes."""
    shown = stage.run(options=["--help"]).stdout.decode()
    assert "rayguard run --dry-run train.log -- python3 -m verl.trainer.main" in " ".join(shown.split())
    assert "Exit code: the command's own" in shown
