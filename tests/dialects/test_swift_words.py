"""ms-swift's options: its file, its engine's own arguments, its launcher, a folder for each launch."""

from __future__ import annotations

import json

import pytest

from rayguard.dialects.dialect import Command
from rayguard.dialects.known import dialect_of
from rayguard.dialects.swift import SWIFT
from rayguard.errors import ConfigError

GRPO = "swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B --use_vllm true --vllm_mode colocate"


@pytest.fixture
def swift(tmp_path):
    """Commands in a folder of their own."""
    return lambda line, **environment: Command(
        words=tuple(line.split()), folder=tmp_path, environment=environment
    )


def test_a_server_is_what_async_generation_needs(swift):
    """The published failure; where the server is has to be said by somebody."""
    before = swift(f"{GRPO} --async_generate true")
    changed = SWIFT.with_settings(before, {"vllm_mode": "server"})
    assert changed.written == ("--vllm_mode server",)
    assert changed.command.words[-3:] == ("true", "--vllm_mode", "server")
    assert changed.command.words.count("--vllm_mode") == 1
    assert (SWIFT.settings(before).vllm_mode, SWIFT.settings(changed.command).vllm_mode) == (
        "colocate",
        "server",
    )
    assert "swift rollout" in changed.refused["vllm_server_host"]
    known = swift(f"{GRPO} --async_generate true --vllm_server_host gpu-1")
    assert not SWIFT.with_settings(known, {"vllm_mode": "server"}).refused
    off = SWIFT.with_settings(before, {"async_generate": False})
    assert off.written == ("--async_generate false",)
    assert SWIFT.settings(off.command).async_generate is False


def test_what_the_engine_has_no_option_for_goes_to_it_as_it_is(swift):
    """Into what stands there already."""
    line = f"{GRPO} --vllm_max_num_seqs 256 --vllm_engine_kwargs"
    before = Command(words=(*line.split(), '{"load_format": "dummy", "async_scheduling": true}', "--lr", "1"))
    asked = {
        "chunked_prefill": False,
        "async_scheduling": False,
        "max_num_batched_tokens": 4096,
        "max_num_seqs": 64,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.5,
        "max_model_len": 2048,
    }
    changed = SWIFT.with_settings(before, asked)
    assert json.loads(changed.command.words[-1]) == {
        "load_format": "dummy",
        "async_scheduling": False,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 4096,
    }
    assert changed.written[-1].startswith("--vllm_engine_kwargs '{"), "as a shell takes it"
    job = SWIFT.settings(changed.command)
    assert {name: getattr(job, name) for name in asked} == asked
    for wrong in ("kwargs.json", "[1]"):
        other = swift(f"{GRPO} --vllm_engine_kwargs {wrong}")
        assert set(SWIFT.with_settings(other, asked).refused) == set(list(asked)[:3])


def test_an_engine_that_is_a_server_has_its_own_command(swift):
    """Nothing of it is written into the trainer's."""
    server = swift("swift rlhf --use_vllm true --vllm_mode server --vllm_server_host h")
    changed = SWIFT.with_settings(
        server, {"enforce_eager": True, "chunked_prefill": False, "micro_update": 1}
    )
    assert changed.written == ("--per_device_train_batch_size 1",)
    assert set(changed.refused) == {"enforce_eager", "chunked_prefill"}


def test_ranks_are_a_variable(swift):
    """As many as GPUs are shown; unknown, it is refused."""
    shown = swift(GRPO, CUDA_VISIBLE_DEVICES="0,1,2,3")
    assert SWIFT.settings(shown).launcher == "python"
    changed = SWIFT.with_settings(shown, {"launcher": "accelerate"})
    assert changed.written == ("NPROC_PER_NODE=4",)
    assert SWIFT.settings(changed.command).launcher == "torchrun"
    assert SWIFT.with_settings(shown, {"launcher": "torchrun", "gpus": 2}).command.environment == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NPROC_PER_NODE": "2",
    }
    assert set(SWIFT.with_settings(swift(GRPO), {"launcher": "torchrun"}).refused) == {"launcher"}


def test_its_script_behind_a_launcher_is_its_own(swift):
    """Written after it, and no launcher is put in front of another."""
    launched = swift(
        "accelerate launch --config_file f.json swift/cli/rlhf.py --vllm_mode colocate --use_vllm true"
    )
    assert dialect_of(launched) is SWIFT
    assert SWIFT.settings(launched).launcher == "accelerate"
    changed = SWIFT.with_settings(launched, {"max_num_seqs": 8, "launcher": "accelerate"})
    assert changed.command.words == (*launched.words, "--vllm_max_num_seqs", "8")
    assert set(changed.refused) == {"launcher"}
    megatron = swift("torchrun --nproc_per_node 2 -m swift.cli._megatron.rlhf --model m")
    assert SWIFT.checkpoints(megatron).folder.parts[-2:] == ("megatron_output", "m")


def test_a_file_of_more_options_is_read(swift, tmp_path):
    """The command line wins over it, and the environment over its ENV."""
    (tmp_path / "c.yaml").write_text(
        "ENV: {NPROC_PER_NODE: 4}\noutput_dir: out\nvllm_mode: server\nvllm_engine_kwargs: {async_scheduling: false}\n"
    )
    (tmp_path / "c.json").write_text('{"num_generations": 4, "sleep_level": 1, "vllm_mode": "colocate"}')
    job = SWIFT.settings(swift("swift rlhf c.yaml --use_vllm true --vllm_mode colocate"))
    assert (job.launcher, job.vllm_mode, job.async_scheduling) == ("torchrun", "colocate", False)
    assert SWIFT.settings(swift("swift rlhf c.yaml", NPROC_PER_NODE="1")).launcher == "python"
    job = SWIFT.settings(swift("swift rlhf c.json"))
    assert (job.answers, job.sleep) == (4, True)
    changed = SWIFT.with_settings(swift("swift rlhf c.json"), {"sleep": False})
    assert changed.command.words == ("swift", "rlhf", "c.json", "--sleep_level", "0")
    assert SWIFT.settings(changed.command).sleep is False
    (tmp_path / "wrong.yaml").write_text("ENV: [a]")
    with pytest.raises(ConfigError, match="sets variables by name"):
        SWIFT.settings(swift("swift rlhf wrong.yaml"))
    with pytest.raises(ConfigError, match="cannot read"):
        SWIFT.settings(swift("swift rlhf none.yaml"))


@pytest.mark.parametrize(
    ("line", "folder", "made", "saves"),
    [
        (GRPO, "output/Qwen2.5-7B", "v0-20260101-101010/checkpoint-7", True),
        (f"{GRPO} --output_dir out --add_version false", "out", "checkpoint-7", True),
        (f"{GRPO} --output_dir /abs --save_strategy no", "/abs", "v12-20260101-101010/checkpoint-7", False),
        ("megatron rlhf --model org/m", "megatron_output/m", "v0-20260101-101010/checkpoint-7", True),
        ("megatron sft --output_dir o --no_save_optim true", "o", "v0-20260101-101010/checkpoint-7", False),
    ],
)
def test_where_swift_keeps_its_checkpoints(swift, tmp_path, line, folder, made, saves):
    """Each launch in a folder of its own."""
    place = SWIFT.checkpoints(swift(line))
    assert place.folder == tmp_path / folder
    assert (place.folder / made).match(place.pattern)
    assert not (place.folder / f"{made}-merged").match(place.pattern)
    assert (place.saves, place.resumes_newest) == (saves, False)


def test_neither_a_folder_nor_a_model_is_no_place(swift):
    """A snapshot in a cache has a name that its folder does not tell."""
    assert SWIFT.checkpoints(swift("swift rlhf --rlhf_type grpo")) is None
    assert SWIFT.checkpoints(swift("swift rlhf --model /c/models--a--b/snapshots/0a")) is None


def test_swift_goes_on_from_the_path_that_it_is_told(swift, tmp_path):
    """A trainer on Megatron loads it as its own kind of weights, and is not to begin at step 0 with it."""
    path = tmp_path / "output/Qwen2.5-7B/v0-20260101-101010/checkpoint-7"
    there = SWIFT.resumed(swift(GRPO), path)
    assert there.written == (f"--resume_from_checkpoint {path}",)
    assert SWIFT.resumed(there.command, None).command == swift(GRPO)
    began = swift(f"{GRPO} --resume_from_checkpoint /sft/checkpoint-3")
    assert SWIFT.resumed(began, None).command == began
    assert SWIFT.resumed(swift("megatron rlhf --model m"), path).written == (
        f"--mcore_model {path}",
        "--finetune false",
    )
    lora = swift("megatron rlhf --model m --tuner_type lora")
    assert SWIFT.resumed(lora, path).written == (f"--mcore_adapter {path}", "--finetune false")


def test_swift_saves_as_often_as_asked(swift):
    """A limit takes nothing of before, where each launch has its own folder."""
    off = swift(f"{GRPO} --save_strategy no")
    changed = SWIFT.saving(off, 30)
    assert changed.written == ("--save_strategy steps", "--save_steps 30", "--save_total_limit 3")
    assert SWIFT.checkpoints(changed.command).saves
    assert set(SWIFT.saving(swift("megatron sft --no_save_optim true"), 30).refused) == {"saving"}
