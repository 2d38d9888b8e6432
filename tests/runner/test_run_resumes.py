"""From which checkpoint ``rayguard run`` goes on, with real files: the last that is whole and finite."""

from __future__ import annotations

import re

SAVE = """\
import struct

def save(step, value, whole=True):
    folder = Path("out/v0-20260101-000000") / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    head = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    body = struct.pack("<ff", 1.0, value)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + body[: 8 if whole else 5])
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))

"""
NAN = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
LOST = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
WORDS = ["rlhf", "--rlhf_type", "grpo", "--output_dir", "out", "--save_steps", "20"]


def resumed(words):
    """The step that a life went on from."""
    if "--resume_from_checkpoint" not in words:
        return None
    return int(re.search(r"\d+$", words[words.index("--resume_from_checkpoint") + 1])[0])


def test_a_poisoned_and_a_half_written_checkpoint_are_passed_over(stage):
    """The newest would end the run again, for ever."""
    story = f"{SAVE}if life == 0:\n    save(20, 1.0), save(40, float('nan')), save(60, 1.0, whole=False)\n    fail({NAN!r})"
    ran = stage.run(stage.swift, *WORDS, story=story)
    said = ran.stderr.decode()
    assert ran.returncode == 0, said
    assert [resumed(life["words"]) for life in stage.lives()] == [None, 20]
    assert re.search(r"checkpoint-40 is not taken: .*NaN", said), said
    assert "checkpoint-60 is not taken" in said


def test_where_none_is_whole_it_begins_anew(stage):
    """As its user started it."""
    story = f"{SAVE}if life == 0:\n    save(20, float('nan'))\n    fail({LOST!r})"
    ran = stage.run(stage.swift, *WORDS, story=story)
    assert ran.returncode == 0, ran.stderr.decode()
    assert [resumed(life["words"]) for life in stage.lives()] == [None, None]


def test_each_checkpoint_is_progress_and_ends_at_the_budget(stage):
    """The same failure again and again, a little further each time."""
    story = f"{SAVE}save(20 * (life + 1), 1.0)\nfail({LOST!r})"
    ran = stage.run(stage.swift, *WORDS, story=story, options=["--max-restarts", 2])
    assert ran.returncode == 1
    assert [resumed(life["words"]) for life in stage.lives()] == [None, 20, 40]
    assert b"the budget is spent (2 restarts" in ran.stderr
    assert [one.outcome.value for one in stage.incidents()] == ["recovered", "recovered", "failed"]


def test_another_run_s_checkpoint_is_not_gone_on_from(stage):
    """It lay there before, and ms-swift would not take it by itself."""
    stage.run(stage.swift, *WORDS, story=f"{SAVE}save(900, 1.0)")
    ran = stage.run(stage.swift, *WORDS, story=f"{SAVE}if life == 1:\n    save(20, 1.0)\n    fail({LOST!r})")
    assert ran.returncode == 0, ran.stderr.decode()
    assert [resumed(life["words"]) for life in stage.lives()] == [None, None, 20]


def test_a_dry_run_names_the_checkpoint(stage):
    """Which one it would be, and which ones not."""
    stage.run(stage.swift, *WORDS, story=f"{SAVE}save(20, 1.0), save(40, float('inf'))")
    log = stage.folder / "log"
    log.write_text(LOST)
    shown = stage.run(stage.swift, *WORDS, options=["--dry-run", log]).stdout.decode()
    assert "checkpoint-40 is not taken" in shown
    assert re.search(r"from \S+checkpoint-20\n", shown), shown
    assert len(stage.lives()) == 1
