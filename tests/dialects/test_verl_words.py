"""verl's Hydra overrides: prefixes, defaults of the package that is there, checkpoints."""

from __future__ import annotations

import pytest

import rayguard
from rayguard.dialects import verl
from rayguard.dialects.dialect import Command
from rayguard.dialects.verl import VERL
from rayguard.errors import ConfigError

START = ("python3", "-m", "verl.trainer.main_ppo")
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch):
    """Whatever is installed where the tests run."""
    monkeypatch.setattr(verl, "package_folder", lambda _: None)


@pytest.fixture
def ppo(tmp_path):
    """Commands in a folder of their own."""
    return lambda *words: Command(words=(*START, *words), folder=tmp_path)


def test_settings_of_the_engine_are_spelled_as_hydra_takes_them(ppo):
    """A key that verl does not have by itself gets ``++``, which takes it whether it is there or not."""
    asked = {
        "chunked_prefill": False,
        "max_num_batched_tokens": 4096,
        "max_num_seqs": 64,
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "enforce_eager": True,
        "gpu_memory_utilization": 0.4,
        "max_model_len": 2048,
        "prompts": 96,
        "micro_update": 2,
    }
    before = ppo(f"{ROLLOUT}.max_num_seqs=1024", "trainer.logger=['console']", "--config-name", "ppo_trainer")
    changed = VERL.with_settings(before, asked)
    assert changed.command.words[:6] == (*START, "trainer.logger=['console']", "--config-name", "ppo_trainer")
    assert f"++{ROLLOUT}.engine_kwargs.vllm.async_scheduling=false" in changed.written
    assert f"{ROLLOUT}.max_num_seqs=64" in changed.written
    job = VERL.settings(changed.command)
    assert {name: getattr(job, name) for name in asked} == asked
    assert (job.framework, job.launcher, job.colocated) == ("verl", "ray", True)


def test_what_only_vllm_has_is_refused_for_another_engine(ppo):
    """The rest is every engine's."""
    other = ppo(f"{ROLLOUT}.name=sglang")
    changed = VERL.with_settings(other, {"async_scheduling": False, "max_num_seqs": 8})
    assert changed.written == (f"{ROLLOUT}.max_num_seqs=8",)
    assert "sglang" in changed.refused["async_scheduling"]


def test_a_prefix_that_stands_there_is_kept(ppo):
    """Its user knew whether the key is there."""
    before = ppo(f"+{ROLLOUT}.engine_kwargs.vllm.async_scheduling=true", f"++{ROLLOUT}.enforce_eager=False")
    changed = VERL.with_settings(before, {"async_scheduling": False, "enforce_eager": True})
    assert changed.command.words == (
        *START,
        f"+{ROLLOUT}.engine_kwargs.vllm.async_scheduling=false",
        f"++{ROLLOUT}.enforce_eager=true",
    )


def test_defaults_come_from_the_package_that_would_run(ppo, tmp_path):
    """A checkout in the folder comes first, as it does for ``python -m``; what it has no key for is refused."""
    assert (VERL.settings(ppo()).prompts, VERL.settings(ppo()).chunked_prefill) == (1024, True)
    folder = tmp_path / "verl/trainer/config"
    folder.mkdir(parents=True)
    (folder / "_generated_ppo_trainer.yaml").write_text(
        "data: {train_batch_size: 77}\nactor_rollout_ref: {rollout: {enforce_eager: true}}\n"
    )
    assert (VERL.settings(ppo()).prompts, VERL.settings(ppo()).enforce_eager) == (77, True)
    changed = VERL.with_settings(
        ppo(), {"max_num_seqs": 8, "async_scheduling": False, "enforce_eager": False}
    )
    assert changed.refused == {"max_num_seqs": f"this version of verl has no {ROLLOUT}.max_num_seqs"}
    assert len(changed.written) == 2
    said = ppo(f"+{ROLLOUT}.max_num_seqs=9")
    assert VERL.with_settings(said, {"max_num_seqs": 8}).written == (f"+{ROLLOUT}.max_num_seqs=8",)


def test_a_file_of_ones_own_is_read_and_a_missing_one_is_a_clear_error(ppo, tmp_path):
    """``--config-path`` in full; the command line wins over it."""
    (tmp_path / "mine.yaml").write_text(
        "defaults: [ppo_trainer]\ndata: {train_batch_size: 60}\ntrainer: {save_freq: 5}\n"
    )
    command = ppo(f"--config-path={tmp_path}", "-cn", "mine", f"{ROLLOUT}.n=4")
    assert (VERL.settings(command).prompts, VERL.settings(command).answers) == (60, 4)
    assert VERL.checkpoints(command).saves
    with pytest.raises(ConfigError, match=r"cannot read .*none\.yaml"):
        VERL.settings(ppo("--config-path", str(tmp_path), "--config-name", "none"))


@pytest.mark.parametrize(
    ("words", "folder", "saves", "resumes"),
    [
        ((), "checkpoints/verl_examples/gsm8k", False, True),
        (("trainer.save_freq=20", "trainer.experiment_name=e"), "checkpoints/verl_examples/e", True, True),
        (("trainer.default_local_dir=out", "trainer.resume_mode=disable"), "out", False, False),
        (
            ("actor_rollout_ref.actor.checkpoint.async_save=True",),
            "checkpoints/verl_examples/gsm8k",
            False,
            False,
        ),
    ],
)
def test_where_verl_keeps_its_checkpoints(ppo, tmp_path, words, folder, saves, resumes):
    """The newest is written nowhere while it saves beside the training."""
    place = VERL.checkpoints(ppo(*words))
    assert place.folder == tmp_path / folder
    assert (place.pattern, place.saves, place.resumes_newest) == ("global_step_*", saves, resumes)


def test_verl_goes_on_from_a_path_or_begins_anew(ppo, tmp_path):
    """And does not remove the checkpoint that it loads, which a second failure would need."""
    mine = tmp_path / "checkpoints/verl_examples/gsm8k/global_step_8"
    there = VERL.resumed(ppo("trainer.del_local_ckpt_after_load=True"), mine)
    assert there.written == (
        "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={mine}",
        "trainer.del_local_ckpt_after_load=false",
    )
    again = VERL.resumed(there.command, None)
    assert again.command.words == (
        *START,
        "trainer.del_local_ckpt_after_load=false",
        "trainer.resume_mode=disable",
    )
    began = ppo("trainer.resume_mode=resume_path", "trainer.resume_from_path=/other/global_step_3")
    assert VERL.resumed(began, None).command == began


def test_verl_saves_with_a_limit_of_its_own_process(ppo):
    """It counts what it made itself, and removes nothing else."""
    changed = VERL.saving(ppo(), 25)
    assert changed.written == (
        "trainer.save_freq=25",
        "trainer.max_actor_ckpt_to_keep=3",
        "trainer.max_critic_ckpt_to_keep=3",
    )
    assert VERL.saving(ppo("trainer.save_freq=50"), 25).written == ("trainer.save_freq=25",)


def test_what_a_megatron_trainer_keeps_is_not_weighed(ppo):
    """The arithmetic of memory is that of FSDP; a reference is there only where it is used."""
    model = "actor_rollout_ref.model.path=/m"
    assert VERL.settings(ppo()).model is None, "its default is a folder that nobody has"
    assert VERL.settings(ppo(model)).model == "/m"
    assert VERL.settings(ppo(model, "actor_rollout_ref.actor.strategy=megatron")).model is None
    offload = "actor_rollout_ref.ref.fsdp_config.param_offload=True"
    assert VERL.settings(ppo(offload)).reference_offload is None
    assert VERL.settings(ppo(offload, "actor_rollout_ref.actor.use_kl_loss=True")).reference_offload is True
    assert VERL.settings(ppo("trainer.v1.trainer_mode=separate_async")).colocated is False


@pytest.mark.parametrize(
    "module",
    [
        "verl.experimental.fully_async_policy.fully_async_main",
        "verl.experimental.one_step_off_policy.main_ppo",
    ],
)
def test_trainers_with_rollouts_apart_are_verls_too(tmp_path, monkeypatch, module):
    """The same keys and checkpoints; of its batches and GPUs, which mean something else, nothing is read."""
    monkeypatch.setattr(verl, "package_folder", lambda _: None)
    words = ("python3", "-m", module, "data.train_batch_size=0", "trainer.n_gpus_per_node=2")
    command = Command(words=words, folder=tmp_path)
    job = VERL.settings(command)
    assert (job.framework, job.launcher, job.colocated, job.prompts, job.gpus) == (
        "verl",
        "ray",
        False,
        None,
        None,
    )
    assert rayguard.preflight(words).findings == ()
    place = VERL.checkpoints(command)
    assert (place.pattern, place.saves) == ("global_step_*", False)
    changed = VERL.with_settings(command, {"enforce_eager": True})
    assert changed.command.words == (*words, f"{ROLLOUT}.enforce_eager=true")
