"""OpenRLHF's options in both spellings: flags are cut out, and only its newest checkpoint is loaded."""

from __future__ import annotations

import pytest

from rayguard.dialects.dialect import Command
from rayguard.dialects.known import dialect_of
from rayguard.dialects.openrlhf import OPENRLHF
from rayguard.errors import ConfigError

MODULE = "python3 -m openrlhf.cli.train_ppo_ray"
OLD, NEW = OPENRLHF
COLOCATED = {
    "old": (OLD, f"{MODULE} --colocate_all_models --vllm_num_engines 8 --enforce_eager --pretrain m"),
    "new": (
        NEW,
        f"ray job submit -- {MODULE} --train.colocate_all --vllm.num_engines 8 --vllm.enforce_eager",
    ),
}


def command(line, folder=None):
    return Command(words=tuple(line.split()), **({} if folder is None else {"folder": folder}))


@pytest.mark.parametrize(("dialect", "line"), COLOCATED.values(), ids=COLOCATED)
def test_each_command_is_changed_in_its_own_spelling(dialect, line):
    """Flags are put in once and cut out where they are to be off: nothing takes them back."""
    assert dialect_of(command(line)) is dialect
    asked = {
        "enforce_eager": False,
        "enable_prefix_caching": True,
        "gpu_memory_utilization": 0.5,
        "engines": 4,
        "tensor_parallel": 2,
        "prompts": 64,
        "micro_update": 2,
        "offload_optimizer": True,
    }
    changed = dialect.with_settings(command(line), asked)
    assert not changed.refused
    spelled = [word for word in changed.command.words if word.startswith("--") and word != "--"]
    assert len(spelled) == len(set(spelled))
    assert not [word for word in spelled if "enforce_eager" in word]
    assert changed.written[-1].startswith("(without --"), "it is said what was cut out"
    job = dialect.settings(changed.command)
    assert {name: getattr(job, name) for name in asked} == asked
    assert dialect.settings(command(line)).enforce_eager is True


def test_a_flag_never_takes_the_word_behind_it():
    """It has no value."""
    before = command(f"{MODULE} --enforce_eager --pretrain m --enable_prefix_caching --x")
    changed = OLD.with_settings(before, {"enforce_eager": False, "enable_prefix_caching": False})
    assert changed.command.words == tuple(f"{MODULE} --pretrain m --x".split())
    again = OLD.with_settings(changed.command, {"enforce_eager": False})
    assert (again.command, again.written) == (changed.command, ())


def test_what_openrlhf_has_no_word_for_is_refused():
    """Chunked prefill among it."""
    asked = {"chunked_prefill": False, "max_num_seqs": 8, "launcher": "accelerate"}
    changed = NEW.with_settings(command(f"{MODULE} --vllm.num_engines 2"), asked)
    assert set(changed.refused) == set(asked)
    assert changed.written == ()
    with pytest.raises(ConfigError, match=r"vllm\.num_engines must be a whole number"):
        NEW.with_settings(command(MODULE), {"engines": 0})


@pytest.mark.parametrize(
    ("dialect", "line", "folder", "saves", "resumes"),
    [
        (OLD, f"{MODULE} --pretrain m", "ckpt/checkpoints_ppo_ray", False, False),
        (OLD, f"{MODULE} --ckpt_path out --save_steps 20 --load_checkpoint", "out", True, True),
        (OLD, f"{MODULE} --save_steps 20 --disable_ds_ckpt", "ckpt/checkpoints_ppo_ray", False, False),
        (NEW, f"{MODULE} --ckpt.path /abs --ckpt.save_steps 5 --ckpt.load_enable", "/abs", True, True),
        (NEW, f"ray job submit -- {MODULE} --ckpt.path /abs", "/abs", False, False),
    ],
)
def test_where_openrlhf_keeps_its_checkpoints(tmp_path, dialect, line, folder, saves, resumes):
    """Those of the actor; it never saves unless told to."""
    place = dialect.checkpoints(command(line, tmp_path))
    assert place.folder == tmp_path / folder / "_actor"
    assert (place.pattern, place.saves, place.resumes_newest) == ("global_step*", saves, resumes)


def test_a_submitted_job_has_a_folder_of_its_own():
    """What it calls ``./ckpt`` is not here."""
    assert NEW.checkpoints(command(f"ray job submit -- {MODULE} --ckpt.path out")) is None


def test_only_the_newest_is_loaded(tmp_path):
    """DeepSpeed is asked for no other."""
    folder = tmp_path / "out/_actor"
    folder.mkdir(parents=True)
    start = command(f"{MODULE} --ckpt.path out", tmp_path)
    assert "no other: none" in NEW.resumed(start, folder / "global_step20").refused["ckpt.load_enable"]
    (folder / "latest").write_text("global_step40\n")
    assert "global_step40" in NEW.resumed(start, folder / "global_step20").refused["ckpt.load_enable"]
    there = NEW.resumed(start, folder / "global_step40")
    assert there.written == ("--ckpt.load_enable",)
    assert NEW.checkpoints(there.command).resumes_newest
    assert NEW.resumed(there.command, None).command == start


def test_openrlhf_saves_as_often_as_asked():
    """In the command's own spelling; not where it was told to keep no state."""
    assert OLD.saving(command(f"{MODULE} --save_steps -1"), 20).command.words[-2:] == ("--save_steps", "20")
    assert NEW.saving(command(f"{MODULE} --ckpt.save_steps -1"), 20).written == ("--ckpt.save_steps 20",)
    assert set(NEW.saving(command(f"{MODULE} --ckpt.disable_ds"), 20).refused) == {"saving"}
