"""TRL's options: its own command, scripts of its users, what their text tells, the launcher in front."""

from __future__ import annotations

import pytest

from rayguard.dialects import script
from rayguard.dialects.dialect import Command
from rayguard.dialects.trl import TRL
from rayguard.errors import ConfigError

PARSES = "from trl import GRPOTrainer, TrlParser\nparser = TrlParser((GRPOConfig,))\n"
RESUMES = f"{PARSES}trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)\n"
FIXED = (
    "from trl import GRPOTrainer\ntrainer = GRPOTrainer(args=GRPOConfig(output_dir='o'))\ntrainer.train()\n"
)


@pytest.fixture(autouse=True)
def not_installed(monkeypatch):
    """Whatever is installed where the tests run."""
    monkeypatch.setattr(script, "package_folder", lambda _: None)


@pytest.fixture
def shell(tmp_path):
    """Commands in a folder with three scripts."""
    for name, text in {"parses": PARSES, "resumes": RESUMES, "fixed": FIXED}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return lambda line, **environment: Command(
        words=tuple(line.split()), folder=tmp_path, environment=environment
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python train.py --vllm_mode colocate", "accelerate launch train.py --vllm_mode colocate"),
        ("python3 fixed.py", "accelerate launch fixed.py"),
        ("/venv/bin/python fixed.py -x", "/venv/bin/python -m accelerate.commands.launch fixed.py -x"),
        ("python -u fixed.py", "python -u -m accelerate.commands.launch fixed.py"),
        ("python -m jobs.grpo --use_vllm", "accelerate launch -m jobs.grpo --use_vllm"),
        (
            "python -u -m jobs.grpo --use_vllm",
            "python -u -m accelerate.commands.launch -m jobs.grpo --use_vllm",
        ),
    ],
)
def test_a_launcher_is_put_in_front_of_a_script(shell, line, expected):
    """The published failure: several GPUs, one process. The same Python runs it, and once is enough."""
    command = shell(line)
    assert TRL.settings(command).launcher == "python"
    changed = TRL.with_settings(command, {"launcher": "accelerate"})
    assert changed.command.words == tuple(expected.split())
    assert changed.written == ("accelerate launch",)
    assert TRL.settings(changed.command).launcher == "accelerate"
    again = TRL.with_settings(changed.command, {"launcher": "accelerate"})
    assert (again.command, again.written, again.refused) == (changed.command, (), {})


@pytest.mark.parametrize(
    "line", ["trl grpo --model m", "uv run fixed.py", "ray job submit -- python fixed.py"]
)
def test_a_launcher_is_refused_where_it_has_no_place(shell, line):
    """With the reason; nothing is changed."""
    changed = TRL.with_settings(shell(line), {"launcher": "accelerate"})
    assert changed.command == shell(line)
    assert set(changed.refused) == {"launcher"}


def test_options_are_written_once_and_after_a_launchers_own(shell):
    """``--vllm-mode=server`` is the same option; a launcher's are not the script's."""
    line = "accelerate launch --num_processes 2 parses.py --vllm-mode=server --lr 1e-6 --vllm_max_model_length 9 --beta -1"
    changed = TRL.with_settings(shell(line), {"vllm_mode": "colocate", "max_model_len": 512, "sleep": False})
    assert changed.command.words == (
        *["accelerate", "launch", "--num_processes", "2", "parses.py", "--lr", "1e-6", "--beta", "-1"],
        *["--vllm_mode", "colocate", "--vllm_max_model_length", "512", "--vllm_enable_sleep_mode", "false"],
    )
    job = TRL.settings(changed.command)
    assert (job.vllm_mode, job.max_model_len, job.sleep, job.launcher) == (
        "colocate",
        512,
        False,
        "accelerate",
    )


def test_what_belongs_to_the_server_is_refused(shell):
    """And what no trainer of TRL has a word for."""
    asked = {"gpu_memory_utilization": 0.5, "max_num_seqs": 4, "micro_update": 2}
    server = TRL.with_settings(shell("trl grpo --use_vllm true --vllm_mode server"), asked)
    assert server.written == ("--per_device_train_batch_size 2",)
    assert all("the server's own command" in why for why in server.refused.values())
    here = TRL.with_settings(shell("trl grpo --use_vllm true"), asked)
    assert here.written == ("--vllm_gpu_memory_utilization 0.5", "--per_device_train_batch_size 2")
    assert here.refused == {"max_num_seqs": "TRL's trainers have no option for max_num_seqs"}
    assert TRL.settings(here.command).gpu_memory_utilization == 0.5
    assert set(TRL.with_settings(shell("trl sft --model m"), {"answers": 4}).refused) == {"answers"}


def test_an_option_that_a_script_does_not_read_is_refused(shell):
    """Its text is asked; without it, whether the command has such options."""
    asked = {"micro_update": 2}
    assert TRL.with_settings(shell("python parses.py"), asked).written == ("--per_device_train_batch_size 2",)
    assert (
        "fixed.py reads no options"
        in TRL.with_settings(shell("python fixed.py"), asked).refused["micro_update"]
    )
    assert TRL.with_settings(shell("python away.py --use_vllm"), asked).written
    assert TRL.with_settings(shell("python -m jobs.train --x 1"), asked).refused


def test_gpus_are_shown_by_their_variable(shell):
    """The first ones of those that are shown now."""
    command = shell("python fixed.py", CUDA_VISIBLE_DEVICES="4,5,6")
    changed = TRL.with_settings(command, {"gpus": 2})
    assert changed.command.environment == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert changed.written == ("CUDA_VISIBLE_DEVICES=4,5",)
    assert (TRL.settings(command).gpus, TRL.settings(changed.command).gpus) == (3, 2)
    assert TRL.with_settings(shell("python fixed.py"), {"gpus": 1}).written == ("CUDA_VISIBLE_DEVICES=0",)


def test_a_file_of_options_is_read_before_the_command_line(shell, tmp_path):
    """Of TRL's parser alone: another one's ``--config`` may be anything."""
    (tmp_path / "c.yaml").write_text(
        "env: {CUDA_VISIBLE_DEVICES: '0,1'}\nuse_vllm: true\nvllm_mode: server\noutput_dir: out\nsave_steps: 20\n"
        "num_generations: 4\nreward_funcs: [a, b]\nvllm_max_model_length: null\n"
    )
    job = TRL.settings(shell("trl grpo --config c.yaml --num_generations 6"))
    assert (job.vllm_mode, job.answers, job.gpus, job.max_model_len) == ("server", 6, 2, None)
    assert TRL.checkpoints(shell("python parses.py --config c.yaml")).folder == tmp_path / "out"
    assert TRL.checkpoints(shell("python fixed.py --config c.yaml")) is None
    with pytest.raises(ConfigError, match="cannot read"):
        TRL.settings(shell("trl grpo --config none.yaml"))


@pytest.mark.parametrize(
    ("line", "folder", "saves"),
    [
        ("trl grpo --model m", "trainer_output", True),
        ("trl grpo --output_dir out --save_steps 0", "out", False),
        ("python parses.py --output_dir out --save_strategy no", "out", False),
        ("python parses.py --output_dir=/abs --save_strategy epoch --save_steps 0", "/abs", True),
        ("python parses.py --output_dir out --save_only_model", "out", False),
        ("python parses.py --output_dir out --save_only_model false", "out", True),
    ],
)
def test_where_trl_keeps_its_checkpoints(shell, tmp_path, line, folder, saves):
    """It saves every 500 steps unless told otherwise, and goes on from none by itself."""
    place = TRL.checkpoints(shell(line))
    assert place.folder == tmp_path / folder
    assert (place.saves, place.resumes_newest) == (saves, False)
    folders = [place.folder / name for name in ("checkpoint-8", "checkpoint-8-merged", "runs")]
    assert [one.name for one in folders if one.match(place.pattern)] == ["checkpoint-8"]


def test_a_script_that_says_no_folder_is_not_known(shell):
    """Nothing is guessed."""
    assert TRL.checkpoints(shell("python fixed.py")) is None
    assert set(TRL.saving(shell("python fixed.py"), 5).refused) == {"saving"}


def test_a_path_is_given_to_go_on_from_where_it_would_be_read(shell, tmp_path, monkeypatch):
    """Never ``True``, which is a path to TRL; a script that does not read it would begin anew without a word."""
    path = tmp_path / "trainer_output/checkpoint-8"
    for line in ("trl grpo --model m", "python resumes.py --output_dir trainer_output"):
        there = TRL.resumed(shell(line), path)
        assert there.command.words == (*line.split(), "--resume_from_checkpoint", str(path))
        assert TRL.resumed(there.command, None).command.words == tuple(line.split())
    told = TRL.resumed(shell("python parses.py --output_dir o"), path)
    assert "parses.py does not read it" in told.refused["resume_from_checkpoint"]
    assert told.command == shell("python parses.py --output_dir o")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/grpo.py").write_text("trainer.train()")
    monkeypatch.setattr(script, "package_folder", lambda _: tmp_path)
    assert TRL.resumed(shell("trl grpo --model m"), path).refused
    began = shell("python resumes.py --output_dir o --resume_from_checkpoint /sft/checkpoint-3")
    assert TRL.resumed(began, None).command == began
    newest = shell("python resumes.py --output_dir o --resume_from_checkpoint True")
    assert TRL.resumed(newest, None).written == ("(without --resume_from_checkpoint)",)


def test_trl_saves_as_often_as_asked(shell, tmp_path):
    """With a limit only where it would take nothing of before."""
    off = shell("trl grpo --output_dir out --save_strategy no")
    changed = TRL.saving(off, 20)
    assert changed.written == ("--save_strategy steps", "--save_steps 20", "--save_total_limit 3")
    assert TRL.checkpoints(changed.command).saves
    (tmp_path / "out/checkpoint-500").mkdir(parents=True)
    assert TRL.saving(off, 20).written == ("--save_strategy steps", "--save_steps 20")
    for kept in ("--save_only_model", "--load_best_model_at_end true"):
        assert set(TRL.saving(shell(f"trl grpo {kept}"), 20).refused) == {"saving"}
