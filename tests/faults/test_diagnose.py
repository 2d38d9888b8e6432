"""The order of evidence, the story that is told, and that nothing upsets it."""

import dataclasses
import pickle
import time

import pytest
from fault_examples import SITE, fault_of, frame_of, positives
from hypothesis import given, settings
from hypothesis import strategies as st

from rayguard.faults.catalog import Catalog, default_catalog
from rayguard.faults.diagnose import consequences, diagnose
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.faults.fault import ExceptionFact, Fault, Frame, ProcessExit, Role, Silence
from rayguard.faults.witness import Origin, origin_of

DEAD = ExceptionFact(
    type_name="vllm.v1.engine.exceptions.EngineDeadError",
    message="EngineCore encountered an issue. See stack trace (above) for the root cause.",
    frames=(frame_of("site/vllm/v1/engine/async_llm.py:392 generate"),),
)
ASSERTION = ExceptionFact(
    type_name="AssertionError",
    role=Role.ENGINE_CORE,
    pid=77,
    frames=(
        frame_of("site/vllm/v1/engine/core.py:667 step"),
        frame_of("site/vllm/v1/core/sched/scheduler.py:1407 schedule | assert token_budget >= 0"),
    ),
    at=1_000.0,
)


# ------------------------------------------------------------------ which fact decides


def test_the_engines_record_outranks_what_the_caller_saw():
    """EngineDeadError says nothing; the record says where and what."""
    found = diagnose(Fault(exceptions=(DEAD,), records=(ASSERTION,)))
    assert (found.kind, found.scope) == (Kind.SCHEDULER_ASSERTION, Scope.ENGINE)
    assert "AssertionError: `assert token_budget >= 0`" in found.cause
    assert "vllm/v1/core/sched/scheduler.py:1407 in schedule" in found.cause
    assert SITE not in found.cause
    assert found.evidence[0].startswith("engine_core 77: AssertionError")
    assert found.evidence[1] == "called from vllm/v1/engine/core.py:667 in step"


def test_the_oldest_record_is_the_root():
    """A worker runs out of memory, then the core asserts: the memory is the cause."""
    oom = ExceptionFact(
        type_name="torch.OutOfMemoryError",
        message="CUDA out of memory.",
        role=Role.ENGINE_WORKER,
        at=999.9,
    )
    assert diagnose(Fault(records=(oom, ASSERTION))).kind is Kind.CUDA_OOM
    assert diagnose(Fault(records=(ASSERTION, oom))).kind is Kind.SCHEDULER_ASSERTION


def test_a_record_of_an_earlier_failure_is_not_the_cause():
    """A refused utility call is recorded, the engine lives on, and dies of something else an hour later."""
    early = dataclasses.replace(ASSERTION, at=1_000.0)
    killed = ProcessExit(role=Role.ENGINE_CORE, pid=77, exitcode=-9, at=4_600.0)
    later = Fault(records=(early,), exits=(killed,), exceptions=(DEAD,), at=4_601.0)
    assert diagnose(dataclasses.replace(later, records=())).signature == "engine.killed"
    fresh = dataclasses.replace(ASSERTION, type_name="torch.OutOfMemoryError", at=4_599.0)
    assert diagnose(dataclasses.replace(later, records=(early, fresh))).kind is Kind.CUDA_OOM


def test_a_record_before_a_long_silence_is_still_the_cause():
    """A worker raised, and the core waited in silence for five minutes."""
    silence = Silence(role=Role.ENGINE_CORE, silent_s=300.0, requests=2)
    fresh = dataclasses.replace(ASSERTION, at=4_590.0, type_name="torch.OutOfMemoryError")
    fault = Fault(records=(ASSERTION, fresh), silence=silence, at=4_600.0)
    assert diagnose(fault).kind is Kind.CUDA_OOM
    waited = dataclasses.replace(fault, records=(dataclasses.replace(ASSERTION, at=4_310.0), fresh))
    assert diagnose(waited).kind is Kind.SCHEDULER_ASSERTION


def test_the_inner_cause_outranks_its_wrappers():
    """What the user re-raised is a wrapper; the port is the cause."""
    outer = ExceptionFact(
        type_name="RuntimeError", message="rollout failed", frames=(frame_of("/home/me/a.py:3 run"),)
    )
    inner = ExceptionFact(type_name="OSError", message="[Errno 98] Address already in use")
    assert diagnose(Fault(exceptions=(outer, inner))).kind is Kind.PORT_CONFLICT


def test_a_specific_fact_outranks_a_generic_one_nearer_to_the_root():
    """An actor died inside, a full disk stands outside: the disk says more."""
    died = ExceptionFact(type_name="ray.exceptions.ActorDiedError", message="The actor died.")
    disk = ExceptionFact(type_name="OSError", message="[Errno 28] No space left on device")
    assert diagnose(Fault(exceptions=(disk, died))).kind is Kind.DISK_FULL


def test_an_unknown_exception_of_the_engine_is_the_engines():
    """Whatever an engine process raised while serving is an engine fault, known or not."""
    odd = ExceptionFact(type_name="pkg.Odd", message="what?", role=Role.ENGINE_CORE)
    found = diagnose(Fault(records=(odd,), exceptions=(DEAD,)))
    assert (found.kind, found.scope) == (Kind.ENGINE_INTERNAL_ERROR, Scope.ENGINE)
    assert "pkg.Odd: what?" in found.cause


def test_a_killed_core_is_told_by_process_and_signal():
    """Which process, which signal, and the likely senders."""
    gone = (
        ProcessExit(role=Role.ENGINE_WORKER, pid=12),  # ends by itself when its core is gone
        ProcessExit(role=Role.ENGINE_CORE, pid=11, exitcode=-9),
    )
    found = diagnose(Fault(exceptions=(DEAD,), exits=gone))
    assert (found.kind, found.scope, found.retry_same_settings) == (Kind.ENGINE_DEAD, Scope.ENGINE, True)
    assert "engine_core process 11 was killed by signal 9 (SIGKILL)" in found.cause
    assert "out-of-memory" in found.cause
    assert "person" in found.cause


def test_silence_is_a_hang():
    """A stopped core raises nothing anywhere."""
    silence = Silence(role=Role.ENGINE_CORE, silent_s=2.3, requests=4, states=((11, "T"),))
    found = diagnose(Fault(silence=silence))
    assert (found.kind, found.scope) == (Kind.ENGINE_HANG, Scope.ENGINE)
    assert "2.3 s with 4 requests running (11 T)" in found.cause


def test_a_frozen_process_is_told_from_other_silences():
    """No setting avoids it, so none is climbed; the words of our own report are heard from a silence alone."""
    why = "engine_worker process 12 is stopped (T)"
    silence = Silence(role=Role.ENGINE_WORKER, silent_s=2.3, requests=4, states=((12, "T"),), why=why)
    found = diagnose(Fault(silence=silence, exceptions=(DEAD,)))
    assert (found.signature, found.kind, found.scope) == ("engine.frozen", Kind.ENGINE_HANG, Scope.ENGINE)
    assert (found.retry_same_settings, found.settings_help, found.cures) == (True, False, ())
    assert why in found.cause
    assert diagnose(Fault(log=(why,))).kind is Kind.UNKNOWN


def test_where_a_silent_process_stands_is_not_what_failed():
    """A silence names functions that other signatures know from tracebacks and logs."""
    why = "engine_core process 12 waits and never comes back, in assert len(self._async_stopped) == 0"
    assert diagnose(Fault(log=(why,))).signature == "vllm.scheduler.async_stopped"
    found = diagnose(Fault(silence=Silence(role=Role.ENGINE_CORE, silent_s=9.0, requests=4, why=why)))
    assert found.signature == "engine.silent"


def test_nothing_known_is_unknown():
    """With confidence 0, and the raw fact in the cause."""
    found = diagnose(Fault(exceptions=(ExceptionFact(type_name="x.Y", message="z"),)))
    assert (found.kind, found.scope, found.confidence) == (Kind.UNKNOWN, Scope.UNKNOWN, 0.0)
    assert "x.Y: z" in found.cause
    assert diagnose(Fault()).kind is Kind.UNKNOWN


def test_an_empty_catalog_is_not_replaced_by_the_default():
    """A user who wants nothing recognised gets nothing recognised."""
    assert diagnose(Fault(records=(ASSERTION,)), Catalog(())).kind is Kind.UNKNOWN


@pytest.mark.parametrize(
    ("file", "origin"),
    [
        ("/home/me/train.py", Origin.USER),
        ("<string>", Origin.USER),
        ("/home/me/.venv/lib/python3.11/site-packages/vllm/x.py", Origin.LIBRARY),
        ("/usr/lib/python3/dist-packages/yaml/x.py", Origin.LIBRARY),
        ("/usr/local/lib/python3.12/dist-packages/ray/x.py", Origin.LIBRARY),
        ("python/ray/_raylet.pyx", Origin.LIBRARY),
        ("/src/rayguard/engine/weights.py", Origin.LIBRARY),
        ("/home/me/rayguard_project/train.py", Origin.USER),
        ("/usr/lib/python3.11/json/decoder.py", Origin.STDLIB),
        ("<frozen importlib._bootstrap>", Origin.STDLIB),
    ],
)
def test_code_is_known_by_where_it_lies(file, origin):
    """User's, library's or the standard library's."""
    assert origin_of(file) is origin


# ------------------------------------------------------------------ the story


def test_consequences_are_told_in_causal_order():
    """Scheduler assertion, then the process that ended, then what the caller saw from the inside out."""
    outer = ExceptionFact(
        type_name="RuntimeError", message="rollout failed", frames=(frame_of("/home/me/a.py:3 run"),)
    )
    fault = Fault(
        exceptions=(outer, DEAD),
        records=(ASSERTION, dataclasses.replace(ASSERTION, type_name="RuntimeError", message="Worker lost")),
        exits=(ProcessExit(role=Role.ENGINE_CORE, pid=77, exitcode=1),),
        log=("a line",),
    )
    told = consequences(fault, diagnose(fault))
    assert [line.split(": ")[0] for line in told] == [
        "engine_core 77",
        "engine_core process 77 exited with code 1",
        "vllm.v1.engine.exceptions.EngineDeadError",
        "RuntimeError",
    ]


def test_the_cause_is_not_its_own_consequence():
    """Also when a wrapper repeats it."""
    fault = Fault(exceptions=(DEAD, DEAD))
    assert consequences(fault, diagnose(fault)) == ()


def test_many_consequences_keep_the_callers_view():
    """An engine that logs a hundred errors does not push out what the caller saw."""
    records = tuple(dataclasses.replace(ASSERTION, message=f"number {n}") for n in range(100))
    fault = Fault(exceptions=(DEAD,), records=records)
    told = consequences(fault, diagnose(fault))
    assert len(told) == 8
    assert told[-1].startswith("vllm.v1.engine.exceptions.EngineDeadError")


# ------------------------------------------------------------------ values, bounds, garbage


@pytest.mark.parametrize("fault", [fault_of(one) for _, one in positives()])
def test_fault_and_diagnosis_survive_pickling(fault):
    """Both cross process borders."""
    assert pickle.loads(pickle.dumps(fault)) == fault
    diagnosis = diagnose(fault)
    assert pickle.loads(pickle.dumps(diagnosis)) == diagnosis
    assert diagnose(fault) == diagnosis


TEXT = st.one_of(
    st.text(alphabet=st.characters(), max_size=200),
    st.sampled_from(
        ["CUDA error", "\ud800", "\0", "\x1b[31m", "%s {} {0}", "RPC call to " + "x" * 500, "1 % 2 != 0"]
    ),
    st.text(max_size=20).map(lambda text: text * 3_000),
)
JUNK = st.one_of(st.none(), st.integers(), st.floats(), TEXT, st.binary(max_size=20), st.just(10**6_000))
FRAMES = st.one_of(
    st.lists(st.builds(Frame, TEXT, st.integers(), TEXT, TEXT), max_size=4).map(tuple),
    st.lists(st.one_of(JUNK, st.builds(Frame, JUNK, JUNK, JUNK, JUNK)), max_size=4).map(tuple),
    JUNK,
)
EXCEPTIONS = st.builds(
    ExceptionFact,
    type_name=st.one_of(TEXT, JUNK, st.just("AssertionError")),
    message=st.one_of(TEXT, JUNK),
    frames=FRAMES,
    role=st.one_of(st.sampled_from(Role), JUNK),
    pid=JUNK,
    at=JUNK,
)
EXITS = st.builds(ProcessExit, role=st.one_of(st.sampled_from(Role), JUNK), pid=JUNK, exitcode=JUNK, at=JUNK)
SILENCES = st.builds(
    Silence, role=st.one_of(st.sampled_from(Role), JUNK), silent_s=JUNK, requests=JUNK, states=JUNK
)


def _some(strategy):
    return st.one_of(st.lists(st.one_of(strategy, JUNK), max_size=4).map(tuple), JUNK)


@settings(max_examples=300)
@given(
    st.builds(
        Fault,
        role=st.one_of(st.sampled_from(Role), JUNK),
        operation=JUNK,
        exceptions=_some(EXCEPTIONS),
        records=_some(EXCEPTIONS),
        exits=_some(EXITS),
        silence=st.one_of(SILENCES, JUNK),
        log=_some(TEXT),
        at=JUNK,
    )
)
def test_no_garbage_upsets_the_diagnosis(fault):
    """It returns a verdict of short, printable text, whatever the facts are."""
    found = diagnose(fault)
    told = consequences(fault, found)
    assert isinstance(found, Diagnosis)
    for text in (found.cause, *found.evidence, *told):
        assert text.isprintable()
        assert len(text) <= 800
        text.encode("utf-8")


def test_a_lone_surrogate_in_a_line_of_code_upsets_nothing():
    broken = ExceptionFact(
        type_name="ValueError", message="x", frames=(Frame("a.py", 1, "f", "x = '\ud800'"),)
    )
    assert isinstance(diagnose(Fault(role=Role.ROLLOUT, exceptions=(broken,))), Diagnosis)


def _best_of(times, call):
    def once():
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return min(once() for _ in range(times))


def test_the_time_does_not_grow_with_the_catalog():
    """Ten times the signatures cost a small part of ten times: each fact is asked only of those that may fit."""
    catalog = default_catalog()
    records = (ASSERTION, dataclasses.replace(ASSERTION, type_name="RuntimeError", message="x" * 500))
    usual = Fault(exceptions=(DEAD,), records=records, exits=(ProcessExit(role=Role.ENGINE_CORE, pid=7),))
    few = Catalog(catalog.signatures[::10])
    assert _best_of(50, lambda: diagnose(usual, catalog)) < 6 * _best_of(50, lambda: diagnose(usual, few))


def test_the_time_does_not_grow_with_the_size_of_a_fault():
    """Messages, chains, records and logs are bounded before anything is matched."""

    def fault(size):
        text = "RPC call to CUDA error: NCCL WARN Net 1 % 2 returned nan values in its Xid (PCI" * size
        return Fault(
            exceptions=tuple(dataclasses.replace(DEAD, message=text + str(n)) for n in range(size)),
            records=tuple(dataclasses.replace(ASSERTION, type_name="E", message=text) for _ in range(size)),
            log=tuple(f"{n} {text}" for n in range(size)),
        )

    large, huge = fault(100), fault(1_000)
    assert _best_of(5, lambda: diagnose(huge)) < 6 * _best_of(5, lambda: diagnose(large))
