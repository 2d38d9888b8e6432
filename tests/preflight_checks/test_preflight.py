"""From a command to its findings: the published failures, a clean job, nonsense; lengths, memory, launcher, place."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import rayguard
from rayguard.dialects.job_settings import JobSettings
from rayguard.errors import ConfigError
from rayguard.preflight_checks import memory, place
from rayguard.preflight_checks.finding import Level
from rayguard.preflight_checks.machine import MachineFacts, this_machine
from rayguard.preflight_checks.model import ModelFacts, model_facts

EASYR1 = "python3 -m verl.trainer.main"
VERL = "actor_rollout_ref.rollout"
OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray --colocate_all_models"
GIB = 1 << 30
ROOMY = MachineFacts(
    memory=2000 * GIB, shm=1000 * GIB, disk=1000 * GIB, open_files=1 << 20, processes=1 << 20
)
SEVEN_B = ModelFacts(
    name="m",
    parameters=7_600_000_000,
    layers=28,
    heads=28,
    kv_heads=4,
    head_size=128,
    vocabulary=152_064,
    context=32_768,
)


@pytest.fixture(autouse=True)
def roomy(monkeypatch):
    """The machine that runs the tests has nothing to do with them."""

    def machine(environment):
        keep = ("CUDA_VISIBLE_DEVICES", "WORLD_SIZE", "LOCAL_RANK")
        return MachineFacts(
            **{name: getattr(ROOMY, name) for name in ("memory", "shm", "disk", "open_files", "processes")},
            environment={name: environment[name] for name in keep if name in environment},
        )

    monkeypatch.setattr("rayguard.preflight_checks.report.this_machine", machine)
    for name in ("CUDA_VISIBLE_DEVICES", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def says(*given, **settings):
    return {one.id: one.write for one in rayguard.preflight(*given, **settings).findings}


PUBLISHED = [
    (
        f"{EASYR1} config=c.yaml data.rollout_batch_size=512 trainer.n_gpus_per_node=6",
        {
            "batch.prompts_over_ranks": "data.rollout_batch_size=504 worker.actor.global_batch_size=126 "
            "worker.actor.micro_batch_size_per_device_for_update=3 "
            "worker.actor.micro_batch_size_per_device_for_experience=15"
        },
    ),
    (
        f"{EASYR1} config=c.yaml worker.rollout.enable_chunked_prefill=true",
        {
            "engine.chunked_prefill": "worker.rollout.enable_chunked_prefill=false "
            "worker.rollout.max_num_batched_tokens=8192"
        },
    ),
    (
        f"{EASYR1} config=c.yaml data.max_prompt_length=22000",
        {"length.batched_tokens": "worker.rollout.max_num_batched_tokens=24048"},
    ),
    (
        "NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --use_vllm true --vllm_mode colocate --async_generate true",
        {"engine.async_needs_server": "--vllm_mode server"},
    ),
    (
        "CUDA_VISIBLE_DEVICES=0,1 python train_grpo.py --use_vllm --per_device_train_batch_size 8",
        {"place.no_launcher": "CUDA_VISIBLE_DEVICES=0"},
    ),
]
CONFIG = """
data: {max_prompt_length: 2048, max_response_length: 2048, rollout_batch_size: 512}
worker:
  actor: {global_batch_size: 128, micro_batch_size_per_device_for_update: 4, micro_batch_size_per_device_for_experience: 16}
  rollout: {n: 5, tensor_parallel_size: 2, gpu_memory_utilization: 0.6}
trainer: {n_gpus_per_node: 8, nnodes: 1}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """EasyR1's own example."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("command", "expected"), PUBLISHED, ids=["512/6", "chunked", "22000", "swift", "TRL"]
)
def test_the_published_failures_are_found_from_the_command_that_caused_them(config, command, expected):
    """With the setting to write, in the framework's own spelling."""
    found = says(command)
    assert expected.items() <= found.items()
    by_words = says(command.split())
    assert by_words == found


@pytest.mark.parametrize(
    "command",
    [
        f"{EASYR1} config=c.yaml",
        f"env A=1 {EASYR1} config=c.yaml worker.actor.optim.lr=1e-6 trainer.logger=[console]",
        "NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --use_vllm true --vllm_mode server --async_generate true",
        "python3 -m verl.trainer.main_ppo data.train_batch_size=1000 trainer.n_gpus_per_node=6",
        f"python3 -m verl.trainer.main_ppo {VERL}.enable_chunked_prefill=False {VERL}.max_num_batched_tokens=256",
        f"{OPENRLHF} --actor_num_gpus_per_node 6 --vllm_num_engines 6 --rollout_batch_size 1000",
        "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 train.py",
        "CUDA_VISIBLE_DEVICES=0,1 python -m torch.distributed.run --nproc_per_node 2 train.py",
        "CUDA_VISIBLE_DEVICES=0,1 accelerate launch train.py",
        "CUDA_VISIBLE_DEVICES=0 python train.py --use_vllm=true",
        "WORLD_SIZE=2 CUDA_VISIBLE_DEVICES=0,1 python train.py",
        "python train.py",
    ],
)
def test_a_clean_job_hears_nothing(config, command):
    """No false alarm."""
    assert says(command) == {}
    assert rayguard.preflight(command)


def test_settings_that_were_proposed_are_clean(config):
    """All at once."""
    report = rayguard.preflight(
        f"{EASYR1} config=c.yaml trainer.n_gpus_per_node=6 data.max_prompt_length=9000"
    )
    written = " ".join(one.write for one in report.errors)
    assert not report
    assert (
        says(f"{EASYR1} config=c.yaml trainer.n_gpus_per_node=6 data.max_prompt_length=9000 {written}") == {}
    )


def test_plain_names_and_a_file(config):
    """And names that are given win over the file's."""
    assert says(prompts=512, gpus=6) == {"batch.prompts_over_ranks": "prompts=510"}
    assert says(config="c.yaml") == {}
    assert "batch.prompts_over_ranks" in says(config="c.yaml", gpus=6)


@pytest.mark.parametrize(
    ("given", "settings", "words"),
    [
        ((), {"prompt": 3}, "did you mean 'prompts'"),
        ((), {"prompts": 0}, "prompts must be a whole number, 1 or more; got 0"),
        ((), {"prompts": "many"}, "got 'many'"),
        ((), {"answers": None}, "answers must be a whole number, 1 or more; got None"),
        ((), {"micro_update": 1 << 40}, "10000 at most"),
        ((), {"async_generate": "no"}, "async_generate must be true or false; got 'no'"),
        ((), {"model": 3}, "model must be text; got 3"),
        ((), {"worker_ports": (7, 3)}, "the first and the last port"),
        ((), {"gpu_memory_utilization": True}, "gpu_memory_utilization must be a number"),
        (("python 'x",), {}, "the command cannot be read"),
        (("cd x && python train.py",), {}, "a command is one program"),
        ((f"{EASYR1} config=none.yaml",), {}, r"cannot read .*none.yaml: No such file"),
        ((f"{EASYR1} data.rollout_batch_size=many",), {}, "data.rollout_batch_size must be a whole number"),
        ((f"{EASYR1} worker.rollout.enable_chunked_prefill=7",), {}, "must be true or false; got 7"),
        (("python x.py",), {"config": "c.yaml"}, "give a command or config=, not both"),
        ((f"{EASYR1} config=list.yaml",), {}, "holds no settings by name"),
        ((f"{EASYR1} config=bad.yaml",), {}, "bad.yaml is no YAML"),
    ],
)
def test_nonsense_is_a_clear_error(config, tmp_path, given, settings, words):
    """One line, by the name that was written."""
    (tmp_path / "list.yaml").write_text("[1]")
    (tmp_path / "bad.yaml").write_text("{a: [")
    with pytest.raises(ConfigError, match=words):
        rayguard.preflight(*given, **settings)


@pytest.fixture
def model(tmp_path):
    """A folder with the files of a small model."""
    folder = tmp_path / "model"
    folder.mkdir()
    plain = {
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
    }

    def written(tokenizer=(), **changed):
        (folder / "config.json").write_text(json.dumps({**plain, **changed}))
        vocabulary = {
            "model": {"vocab": {"a": 0, "b": 1}},
            "added_tokens": [{"id": one} for one in tokenizer],
        }
        (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
        return str(folder)

    return written


def test_a_models_files_say_how_large_it_is(model):
    """Qwen2.5-7B has 7.6 billion parameters, 56 KiB of cache a token, and 32,768 tokens, or what its rope makes of them."""
    facts = model_facts(model())
    assert facts.parameters == pytest.approx(7.6e9, rel=0.02)
    assert facts.kv_bytes == 2 * 28 * 4 * 128 * 2
    assert (facts.context, facts.tokenizer_size) == (32768, 2)
    rope = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert model_facts(model(rope_scaling=rope)).context == 131072
    assert model_facts(model(text_config={"hidden_size": 8, "num_attention_heads": 2})).heads == 2
    assert model_facts("nobody/has-this") is None


def test_a_tokenizer_is_counted_by_whichever_files_it_has(model, tmp_path):
    """A fast one, a slow one with its added tokens, one of its own folder; sentencepiece alone says nothing."""
    name = model()
    folder = tmp_path / "model"
    assert model_facts(name).tokenizer_size == 2
    (folder / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"7": {}, "x": 1}}')
    assert model_facts(name).tokenizer_size == 8
    (folder / "tokenizer.json").unlink()
    assert model_facts(name).tokenizer_size == 0
    (folder / "vocab.json").write_text('{"a": 0, "b": 9}')
    (folder / "added_tokens.json").write_text('{"<x>": 11}')
    assert model_facts(name).tokenizer_size == 12
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text('{"model": {"vocab": [["a", 0.0], ["b", 0.0]]}, "added_tokens": 3}')
    assert model_facts(name, str(other)).tokenizer_size == 2
    (other / "added_tokens.json").write_text('{"<y>": 200000}')
    found = rayguard.preflight(model=name, tokenizer=other, gpu_bytes=200 * GIB).errors
    assert [one.id for one in found] == ["model.tokenizer"]
    assert f"the tokenizer of {other} has 200001 tokens" in found[0].message
    assert model_facts(name, "nobody/has-this").tokenizer_size == 0
    for broken in ("[]", "{", '{"model": {"vocab": 3}}'):
        (other / "tokenizer.json").write_text(broken)
        assert model_facts(name, str(other)).tokenizer_size == 0


@pytest.mark.parametrize(
    ("settings", "changed", "expected"),
    [
        ({"max_model_len": 40_000}, {}, {"length.context": "max_model_len=32768"}),
        ({"prompt_tokens": 32_000, "response_tokens": 2_000}, {}, {"length.context": "prompt_tokens=30768"}),
        ({"gpus": 8, "tensor_parallel": 8}, {}, {"parallel.heads": "tensor_parallel=7"}),
        ({"gpus": 7, "tensor_parallel": 7}, {}, {"parallel.heads": "tensor_parallel=4"}),
        ({}, {"tokenizer": [152_064]}, {"model.tokenizer": ""}),
        (
            {"prompt_tokens": 10, "response_tokens": 9, "max_model_len": 18},
            {},
            {"length.engine": "max_model_len=19"},
        ),
        (
            {
                "prompt_tokens": 10,
                "response_tokens": 9,
                "max_num_batched_tokens": 18,
                "chunked_prefill": True,
            },
            {},
            {},
        ),
    ],
)
def test_lengths_and_heads_against_the_model(model, settings, changed, expected):
    """As vLLM would refuse them."""
    found = says(model=model(**changed), gpu_bytes=200 * GIB, **settings)
    assert {name: write for name, write in found.items() if not name.startswith("memory.")} == expected


def needs(**settings):
    job = JobSettings(gpus=8, tensor_parallel=2, prompt_tokens=2048, response_tokens=2048, **settings)
    return {one.id: dict(one.settings) for one in memory.check(job, SEVEN_B, ROOMY)}


def test_memory_by_arithmetic():
    """7.6 billion parameters: 16 bytes each in training, 2 in an engine, over eight GPUs."""
    assert (
        needs(gpu_bytes=80 * GIB, gpu_memory_utilization=0.6, offload_optimizer=True, offload_params=True)
        == {}
    )
    assert needs(
        gpu_bytes=12 * GIB, gpu_memory_utilization=0.3, offload_optimizer=True, offload_params=True
    ) == {"memory.engine": {"gpu_memory_utilization": pytest.approx(0.65, abs=0.1)}}
    assert "memory.trainer" in needs(gpu_bytes=12 * GIB, gpu_memory_utilization=0.9)
    assert needs(gpu_bytes=24 * GIB, gpu_memory_utilization=0.9) == {"memory.colocated": {}}
    one = needs(gpu_bytes=80 * GIB, offload_params=True, offload_optimizer=True, host_bytes=64 * GIB)
    assert one == {"memory.host": {"offload_params": False, "offload_optimizer": False}}


def test_an_adapter_and_half_the_bits_need_less():
    """LoRA has neither gradients nor moments of the model; bf16 halves all three."""
    offloaded = {"gpu_bytes": 80 * GIB, "offload_params": True, "offload_optimizer": True}
    assert "memory.host" in needs(**offloaded, host_bytes=64 * GIB)
    assert needs(**offloaded, host_bytes=64 * GIB, adapter=True) == {}
    assert needs(**offloaded, host_bytes=64 * GIB, train_dtype="bf16") == {}
    assert "memory.trainer" in needs(gpu_bytes=12 * GIB, gpu_memory_utilization=0.9)
    assert "memory.trainer" not in needs(gpu_bytes=12 * GIB, gpu_memory_utilization=0.9, adapter=True)


@pytest.mark.parametrize(
    ("words", "adapter", "dtype"),
    [
        (f"{EASYR1} config=c.yaml worker.actor.model.lora.rank=64", True, None),
        (f"{EASYR1} config=c.yaml worker.actor.fsdp.torch_dtype=bf16", False, "bf16"),
        ("python3 -m verl.trainer.main_ppo actor_rollout_ref.model.lora_rank=32", True, None),
        ("python3 -m verl.trainer.main_ppo", False, None),
    ],
)
def test_an_adapter_and_the_bits_are_read(config, words, adapter, dtype):
    """As each framework has them; verl's installed defaults say 32 bits."""
    job = rayguard.preflight(words).settings
    assert job.adapter is adapter
    assert job.train_dtype in (dtype, "fp32")


def test_a_step_that_is_larger_than_the_object_store_is_told():
    """512 prompts, 5 answers, 24,048 tokens: 5.7 GB (measured); a node of 16 GiB has 4.8 for objects."""
    job = JobSettings(
        prompts=512, answers=5, prompt_tokens=22_000, response_tokens=2_048, gpus=8, host_bytes=16 * GIB
    )
    (one,) = memory.check(job, None, ROOMY)
    assert (one.id, one.level) == ("memory.object_store", Level.WARNING)


def test_what_could_not_be_checked_is_said(config):
    """Quietly: it is no failure."""
    report = rayguard.preflight(f"{EASYR1} config=c.yaml worker.actor.model.model_path=nobody/has-this")
    assert [(one.id, one.level) for one in report.findings] == [("memory.unknown_model", Level.NOTE)]
    assert report


def test_a_small_place_is_told():
    """What Ray and vLLM need of a machine."""
    small = MachineFacts(shm=64 << 20, disk=GIB, open_files=1024, processes=1024)
    assert [one.id for one in place.check(JobSettings(), small)] == [
        "place.shm",
        "place.disk",
        "place.open_files",
        "place.processes",
    ]
    assert list(place.check(JobSettings(), MachineFacts())) == [], "what nobody can say is no failure"


def test_this_machine_can_be_looked_at():
    """Real numbers, and only the GPUs that a process would see."""
    machine = this_machine({"CUDA_VISIBLE_DEVICES": ""})
    assert machine.memory > GIB
    assert machine.shm > 0
    assert machine.gpus == 0
    assert this_machine({"CUDA_VISIBLE_DEVICES": "0,3"}).gpus == 2


def test_neither_torch_nor_vllm_nor_ray_is_loaded(config, tmp_path):
    """A check is over before they would be imported."""
    code = (
        "import sys, rayguard; rayguard.preflight(config='c.yaml', gpus=6);"
        "print([name for name in ('torch', 'vllm', 'ray') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "[]"
