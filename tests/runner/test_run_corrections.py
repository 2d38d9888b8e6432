"""Which settings a diagnosis asks for, by plain names, and from which checkpoint a command goes on."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from rayguard.dialects.dialect import Changed, CheckpointPlace, Command
from rayguard.dialects.job_settings import JobSettings
from rayguard.dialects.known import dialect_of
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.preflight_checks.finding import error
from rayguard.runner.checkpoint_look import CheckpointLook, CheckpointProof, CheckpointVerdict
from rayguard.runner.correction import JobFacts, corrections
from rayguard.runner.machine import NoStart
from rayguard.runner.plan import RunPlan, plan
from rayguard.runner.resume import Start, furthest, own, own_good, start, there


def verdict(kind, signature="s", evidence=(), cures=(), scope=Scope.PROCESS):
    return Diagnosis(
        signature=signature, kind=kind, scope=scope, cause="c", confidence=0.9, evidence=evidence, cures=cures
    )


def found(diagnosis, seen=0, findings=(), **settings):
    facts = JobFacts(settings=JobSettings(**settings), gpus=seen, findings=findings)
    return {one.name: dict(one.settings) for one in corrections(diagnosis, facts)}


def test_cures_become_the_engine_s_plain_settings_in_their_order():
    """Without chunks a whole prompt must fit one step."""
    diagnosis = verdict(Kind.SCHEDULER_ASSERTION, cures=("chunked_prefill_off", "eager"))
    names = found(diagnosis, prompt_tokens=3000, response_tokens=1000, max_num_batched_tokens=2048)
    assert list(names) == ["chunked_prefill_off", "eager"]
    assert names["chunked_prefill_off"] == {"chunked_prefill": False, "max_num_batched_tokens": 4000}
    assert names["eager"] == {"enforce_eager": True}


def test_a_batch_is_corrected_for_the_ranks_that_the_failure_counts():
    """Not for those that the settings speak of."""
    diagnosis = verdict(Kind.BATCH_INDIVISIBLE, evidence=("Got size of DataProto 512 and chunk 6.",))
    (only,) = found(diagnosis, prompts=512, gpus=0, mini_batch=128, nodes=1).values()
    assert only["prompts"] % 6 == only["prompts"] % only["mini_batch"] == 0


def test_two_threads_on_one_engine_need_a_server_only_where_they_were_asked_for():
    """ms-swift's ``async_generate``; elsewhere the signature's own cures."""
    diagnosis = verdict(
        Kind.SCHEDULER_ASSERTION, "vllm.scheduler.prefill_while_decoding", cures=("one_sequence",)
    )
    assert list(found(diagnosis, async_generate=True)) == ["vllm_mode_server", "one_sequence"]
    assert list(found(diagnosis)) == ["one_sequence"]
    refused = verdict(Kind.CONFIG_INVALID, evidence=("async_generate requires vllm_mode == 'server'",))
    assert found(refused, async_generate=True) == {"vllm_mode_server": {"vllm_mode": "server"}}


@pytest.mark.parametrize(
    ("settings", "gpus", "wanted"),
    [
        ({"launcher": "python"}, 2, True),
        ({"launcher": "python", "gpus": 8}, 0, True),
        ({"launcher": "python"}, 1, False),
        ({"launcher": "torchrun"}, 8, False),
        ({"launcher": "ray"}, 8, False),
    ],
)
def test_a_device_side_assert_of_several_gpus_in_one_process_gets_a_launcher(settings, gpus, wanted):
    """With one GPU, or with its launcher, it is another cause."""
    assert ("launcher" in found(verdict(Kind.CUDA_DEVICE_ASSERT), gpus, **settings)) is wanted


def test_a_full_device_gets_smaller_pieces_that_train_the_same():
    """Micro-batches halve to a divisor, so that all still divides; then the engine's share."""
    names = found(verdict(Kind.CUDA_OOM), micro_update=12, micro_experience=1, gpu_memory_utilization=0.6)
    assert names["less_device_memory"] == {"micro_update": 6, "gpu_memory_utilization": 0.5}
    assert names["fewer_sequences"]["max_num_seqs"] == 32
    apart = found(verdict(Kind.CUDA_OOM), micro_update=3, gpu_memory_utilization=0.9, colocated=False)
    assert apart["less_device_memory"] == {"micro_update": 1}


def test_a_full_host_gets_its_offloaded_state_back_on_the_devices_where_they_hold_it():
    """Known not to fit, it is left."""
    host = verdict(Kind.HOST_OOM)
    assert found(host, offload_params=True) == {"no_offload": {"offload_params": False}}
    assert found(host, offload_params=True, findings=(error("memory.trainer", "m"),)) == {}
    assert found(host) == {}


def test_what_preflight_corrects_of_the_same_kind_is_taken_over():
    """And of no other kind."""
    finding = error("length.engine", "too short", max_model_len=4096)
    assert found(verdict(Kind.CONFIG_INVALID), findings=(finding,)) == {
        "length.engine": {"max_model_len": 4096}
    }
    assert found(verdict(Kind.NCCL_TIMEOUT), findings=(finding,)) == {}


EASYR1 = Command(words=("python3", "-m", "verl.trainer.main", "trainer.save_freq=5"))


def test_only_what_its_framework_has_whole_words_for_is_offered():
    """EasyR1 has no ``max_num_seqs``: half of that safe setting would be none."""
    job = RunPlan(command=EASYR1, dialect=dialect_of(EASYR1))
    diagnosis = verdict(Kind.SCHEDULER_ASSERTION, cures=("fewer_sequences", "prefix_caching_off", "eager"))
    assert [one.name for one in job.corrections(diagnosis, ())] == ["eager"]
    (eager,) = job.corrections(diagnosis, ())
    assert job.corrections(diagnosis, (eager,)) == ()
    assert job.changed((eager,)).written == ("worker.rollout.enforce_eager=true",)


def test_a_command_of_no_framework_is_never_changed():
    """Nobody knows what it would mean."""
    command = Command(words=("python3", "train.py"))
    assert dialect_of(command) is None
    job = plan(command, None, save_every=20)
    assert (job.command, job.place, job.notes) == (command, None, ())
    assert job.corrections(verdict(Kind.SCHEDULER_ASSERTION, cures=("eager",)), ()) == ()


class Resumable:
    """A dialect as far as going on is concerned."""

    name = "small"

    def __init__(self, refused=None):
        self.refused = refused or {}

    def resumed(self, command, checkpoint):
        word = f"from={checkpoint.name}" if checkpoint else "from=nothing"
        return Changed(
            command=dataclasses.replace(command, words=(*command.words, word)),
            written=(word,),
            refused=self.refused,
        )


COMMAND = Command(words=("train",))


@pytest.fixture
def place(tmp_path):
    return CheckpointPlace(folder=tmp_path, pattern="step_*", saves=True, resumes_newest=True)


def make(place, *steps):
    for step in steps:
        (place.folder / f"step_{step}").mkdir()
    return there(place)


def looked(good=None, **passed_over):
    looks = tuple(CheckpointLook(Path(name), proof, "why") for name, proof in passed_over.items())
    return CheckpointVerdict(None if good is None else Path(good), looks)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (looked("step_8"), ("train", "from=step_8")),
        (looked("step_8", step_9=CheckpointProof.BAD), ("train", "from=step_8")),
        (looked("step_8", step_9=CheckpointProof.UNDECIDED), ("train", "from=step_8")),
        (looked(step_9=CheckpointProof.BAD), ("train", "from=nothing")),
        (looked(), ("train",)),
        (looked(step_9=CheckpointProof.UNDECIDED, step_8=CheckpointProof.BAD), None),
    ],
)
def test_it_goes_on_from_what_is_proved_whole_or_not_at_all(place, seen, words):
    """From the beginning only where nothing that may be whole would be lost."""
    how = start(Resumable(), COMMAND, place, seen, made_nothing=False)
    assert isinstance(how, NoStart) if words is None else how.command.words == words


def test_broken_checkpoints_that_would_not_be_taken_by_itself_need_no_word(place):
    """The command as it stands begins anew."""
    alone = dataclasses.replace(place, resumes_newest=False)
    how = start(Resumable(), COMMAND, alone, looked(step_9=CheckpointProof.BAD), made_nothing=False)
    assert how == Start(command=COMMAND, notes=("step_9 is not taken: why",))


def test_a_command_that_cannot_be_told_where_to_go_on_is_not_started(place):
    """It would begin anew and overwrite a good checkpoint."""
    how = start(
        Resumable({"resume": "its script reads no option"}),
        COMMAND,
        place,
        looked("step_8"),
        made_nothing=True,
    )
    assert isinstance(how, NoStart)
    assert "its script reads no option" in how.why


def test_without_a_known_place_it_begins_anew_only_where_nothing_is_lost(place):
    """It ended at once, or its user allows it."""
    assert start(Resumable(), COMMAND, None, None, made_nothing=True) == Start(command=COMMAND)
    assert "--retry-unknown" in start(Resumable(), COMMAND, None, None, made_nothing=False).why


def test_what_lay_there_before_is_another_run_s(place):
    """Unless the framework goes on from the newest by itself, or it was written anew."""
    apart = dataclasses.replace(place, resumes_newest=False)
    before = make(apart, 100, 200)
    make(apart, 5)
    assert [path.name for path in own(apart, before)] == ["step_5"]
    assert furthest(own(apart, before)) == 5
    assert furthest(own(place, before)) == 200
    os.utime(apart.folder / "step_100", ns=(1, 1))
    assert {path.name for path in own(apart, before)} == {"step_5", "step_100"}


def test_only_the_run_s_own_are_looked_at(place):
    """The newest first, each for itself; what lay there before is not even opened."""
    apart = dataclasses.replace(place, resumes_newest=False)
    before = make(apart, 900)
    for at, step in enumerate((1, 2, 3)):
        make(apart, step)
        os.utime(apart.folder / f"step_{step}", ns=(at, at))
    asked = []

    def find(where, *, deadline_s):
        asked.append(where.pattern)
        path = where.folder / where.pattern
        bad = CheckpointLook(path, CheckpointProof.BAD, "half-written")
        return CheckpointVerdict(None, (bad,)) if where.pattern == "step_3" else CheckpointVerdict(path)

    seen = own_good(find, apart, before, 60.0)
    assert (asked, seen.good.name) == (["step_3", "step_2"], "step_2")
    assert [one.path.name for one in seen.rejected] == ["step_3"]


def test_nothing_there_is_not_looked_at(place):
    """No process is started for it."""
    assert own_good(lambda *_, **__: 1 / 0, place, {}, 60.0) == CheckpointVerdict(None)
