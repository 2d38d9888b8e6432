"""EasyR1's dotlist: settings read and written, the corrections of the published failures, checkpoints."""

from __future__ import annotations

import pytest

from rayguard.dialects.dialect import Command
from rayguard.dialects.easyr1 import EASYR1
from rayguard.errors import ConfigError
from rayguard.preflight_checks import batches

START = ("python3", "-m", "verl.trainer.main", "config=c.yaml")
CONFIG = """
data: {max_prompt_length: 2048, max_response_length: 2048, rollout_batch_size: 512}
worker:
  actor:
    global_batch_size: 128
    micro_batch_size_per_device_for_update: 4
    micro_batch_size_per_device_for_experience: 16
    offload: {offload_params: true, offload_optimizer: true}
  rollout: {n: 5, tensor_parallel_size: 2, gpu_memory_utilization: 0.6, enable_chunked_prefill: true}
trainer: {n_gpus_per_node: 8, nnodes: 1, experiment_name: seven_b}
"""


@pytest.fixture
def easyr1(tmp_path):
    """Commands in a folder with a file like EasyR1's own example."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    return lambda *words: Command(words=(*START, *words), folder=tmp_path)


def test_chunked_prefill_is_taken_back_on_the_command_line(easyr1):
    """The published failure; what stood there before goes, whatever it was."""
    before = easyr1("worker.rollout.enable_chunked_prefill=true", "trainer.logger=[console]")
    changed = EASYR1.with_settings(before, {"chunked_prefill": False})
    assert changed.written == ("worker.rollout.enable_chunked_prefill=false",)
    assert changed.command.words == (*START, "trainer.logger=[console]", *changed.written)
    assert EASYR1.settings(before).chunked_prefill is True
    assert EASYR1.settings(changed.command).chunked_prefill is False


def test_512_over_6_becomes_what_divides(easyr1):
    """What the check of batches proposes, written, leaves it nothing to say."""
    command = easyr1("trainer.n_gpus_per_node=6")
    proposed = {
        name: value for one in batches.check(EASYR1.settings(command)) for name, value in one.settings.items()
    }
    changed = EASYR1.with_settings(command, proposed)
    assert set(changed.written) == {
        "data.rollout_batch_size=504",
        "worker.actor.global_batch_size=126",
        "worker.actor.micro_batch_size_per_device_for_update=3",
        "worker.actor.micro_batch_size_per_device_for_experience=15",
    }
    assert list(batches.check(EASYR1.settings(changed.command))) == []


def test_less_memory_is_spelled_as_easyr1_has_it(easyr1):
    """The published death for want of memory: offload off, a smaller engine, smaller pieces."""
    asked = {
        "gpu_memory_utilization": 0.5,
        "offload_params": False,
        "offload_optimizer": False,
        "reference_offload": False,
        "micro_update": 2,
        "enforce_eager": True,
    }
    changed = EASYR1.with_settings(easyr1(), asked)
    assert not changed.refused
    assert changed.command.words[len(START) :] == (
        "worker.rollout.gpu_memory_utilization=0.5",
        "worker.actor.offload.offload_params=false",
        "worker.actor.offload.offload_optimizer=false",
        "worker.ref.fsdp.enable_cpu_offload=false",
        "worker.actor.micro_batch_size_per_device_for_update=2",
        "worker.rollout.enforce_eager=true",
    )
    job = EASYR1.settings(changed.command)
    assert {name: getattr(job, name) for name in asked} == asked


def test_what_easyr1_has_no_word_for_is_refused_with_the_reason(easyr1):
    """And nothing is written for it."""
    asked = {
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
        "launcher": "accelerate",
        "vllm_mode": "server",
    }
    changed = EASYR1.with_settings(easyr1(), asked)
    assert (changed.written, changed.command) == ((), easyr1())
    assert set(changed.refused) == set(asked)
    assert changed.refused["max_num_seqs"].startswith("EasyR1 hands no max_num_seqs to its engine")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"chunked_prefil": False}, "did you mean 'chunked_prefill'"),
        ({"chunked_prefill": 7}, "enable_chunked_prefill must be true or false; got 7"),
        ({"prompts": 0}, "data.rollout_batch_size must be a whole number"),
        ({"max_model_len": None}, "worker.rollout.max_model_len must have a value"),
    ],
)
def test_a_setting_that_makes_no_sense_is_a_clear_error(easyr1, asked, words):
    """By EasyR1's own name of it."""
    with pytest.raises(ConfigError, match=words):
        EASYR1.with_settings(easyr1(), asked)


@pytest.mark.parametrize(
    ("words", "folder", "saves", "resumes"),
    [
        ((), "checkpoints/easy_r1/seven_b", False, True),
        (("trainer.save_freq=5", "trainer.project_name=p"), "checkpoints/p/seven_b", True, True),
        (("trainer.save_checkpoint_path=out", "trainer.find_last_checkpoint=false"), "out", False, False),
        (("trainer.save_checkpoint_path=/abs/out/",), "/abs/out", False, True),
        (("trainer.save_freq=5", "trainer.save_model_only=true"), "checkpoints/easy_r1/seven_b", False, True),
        (("trainer.load_checkpoint_path=/x/global_step_3",), "checkpoints/easy_r1/seven_b", False, False),
        (("trainer.save_checkpoint_path=${trainer.project_name}/x",), "easy_r1/x", False, True),
    ],
)
def test_where_checkpoints_lie_and_what_becomes_of_them(easyr1, tmp_path, words, folder, saves, resumes):
    """From the folder of the command, as EasyR1 makes it absolute; it never saves unless told to."""
    place = EASYR1.checkpoints(easyr1(*words))
    assert place.folder == tmp_path / folder
    assert (place.pattern, place.saves, place.resumes_newest) == ("global_step_*", saves, resumes)


def test_a_folder_that_cannot_be_known_is_none(easyr1):
    """An interpolation of the environment, and a job that is submitted."""
    assert EASYR1.checkpoints(easyr1("trainer.save_checkpoint_path=${oc.env:OUT}")) is None
    job = ("ray", "job", "submit", "--", "python3", "-m", "verl.trainer.main")
    assert EASYR1.checkpoints(Command(words=job)) is None
    assert EASYR1.checkpoints(Command(words=(*job, "trainer.save_checkpoint_path=/nfs/out"))).saves is False


def test_going_on_from_a_checkpoint_and_beginning_anew(easyr1, tmp_path):
    """A path that is named wins over the search; what the user loads from elsewhere stays."""
    mine = tmp_path / "checkpoints/easy_r1/seven_b/global_step_4"
    there = EASYR1.resumed(easyr1(), mine)
    assert there.written == (f"trainer.load_checkpoint_path={mine}",)
    assert EASYR1.resumed(easyr1(), None).written == ("trainer.find_last_checkpoint=false",)
    again = EASYR1.resumed(there.command, None)
    assert again.written == ("trainer.find_last_checkpoint=false", "trainer.load_checkpoint_path=null")
    assert EASYR1.checkpoints(again.command).resumes_newest is False
    began = easyr1("trainer.load_checkpoint_path=/sft/global_step_9")
    assert "trainer.load_checkpoint_path=/sft/global_step_9" in EASYR1.resumed(began, None).command.words


def test_saving_is_switched_on_with_a_limit_where_nothing_of_before_would_go(easyr1, tmp_path):
    """EasyR1's limit removes checkpoints of earlier runs, too."""
    changed = EASYR1.saving(easyr1("trainer.save_freq=-1"), 10)
    assert changed.written == ("trainer.save_freq=10", "trainer.save_limit=3")
    assert EASYR1.checkpoints(changed.command).saves
    (tmp_path / "checkpoints/easy_r1/seven_b/global_step_7").mkdir(parents=True)
    assert EASYR1.saving(easyr1(), 10).written == ("trainer.save_freq=10",)
    assert EASYR1.saving(easyr1("trainer.save_limit=1"), 10).written == ("trainer.save_freq=10",)
    kept = easyr1("trainer.save_model_only=true")
    assert (EASYR1.saving(kept, 10).command, *EASYR1.saving(kept, 10).refused) == (kept, "saving")
    for wrong in (0, -1, True, 2.5):
        with pytest.raises(ConfigError, match="a whole number of steps"):
            EASYR1.saving(easyr1(), wrong)


@pytest.mark.parametrize("path", ["/a b/c", "/a: b", "/a #b", "/d/ü", "plain/x-1.2_3", "20260101"])
def test_a_path_is_read_back_as_it_was_written(easyr1, path):
    """Quoted where YAML would take it for something else."""
    command = EASYR1.with_settings(easyr1(), {"model": path}).command
    assert EASYR1.settings(command).model == path
    assert EASYR1.resumed(command, None).command.words[:4] == START
