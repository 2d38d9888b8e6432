"""What is decided about a failing call: tables of cases, and invariants that no diagnosis may break."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.recovery.calls import CERTAIN, TRANSIENT, Restart, decide_call, needs_new_process
from rayguard.recovery.policy import GuardPolicy
from rayguard.recovery.remedy import Action

POLICY = GuardPolicy(call_retries=2)
ANSWERED = (Scope.REQUEST, Scope.CODE, Scope.JOB, Scope.UNKNOWN)


def verdict(kind, scope, *, retry=True, deterministic=False, poisoned=False, confidence=1.0):
    return Diagnosis(
        signature="test.one",
        kind=kind,
        scope=scope,
        cause="because",
        confidence=confidence,
        retry_same_settings=retry,
        deterministic=deterministic,
        poisoned=poisoned,
    )


def decide(diagnosis, *, attempt=0, idempotent=True, restart=Restart.POSSIBLE, policy=POLICY):
    return decide_call(diagnosis, attempt=attempt, idempotent=idempotent, restart=restart, policy=policy)


verdicts = st.builds(
    verdict,
    st.sampled_from(Kind),
    st.sampled_from(Scope),
    retry=st.booleans(),
    deterministic=st.booleans(),
    poisoned=st.booleans(),
    confidence=st.floats(0.0, 1.0),
)
restarts = st.sampled_from(Restart)


@pytest.mark.parametrize("scope", ANSWERED)
def test_what_is_nobodys_to_repair_is_answered_at_once(scope):
    """The user's own error goes out; it is never repeated blindly."""
    assert decide(verdict(Kind.USER_CODE, scope)).action is Action.ANSWER_ERROR


@pytest.mark.parametrize("kind", sorted(TRANSIENT))
@pytest.mark.parametrize("scope", [Scope.NODE, Scope.ENGINE, Scope.REQUEST])
def test_a_transient_failure_is_repeated_until_the_retries_are_used_up(kind, scope):
    """Twice, with the default policy, whatever scope the catalog gives it; then the error goes out."""
    actions = [decide(verdict(kind, scope), attempt=n).action for n in range(4)]
    assert actions == [Action.RETRY, Action.RETRY, Action.NONE, Action.NONE]


@pytest.mark.parametrize(
    "diagnosis",
    [
        verdict(Kind.CUDA_DEVICE_ASSERT, Scope.PROCESS, poisoned=True),
        verdict(Kind.CUDA_ILLEGAL_ACCESS, Scope.PROCESS, poisoned=True),
        verdict(Kind.CUDA_ILLEGAL_ACCESS, Scope.PROCESS, poisoned=True, confidence=CERTAIN),
        verdict(Kind.CUDA_OOM, Scope.ENGINE, poisoned=True),
        verdict(Kind.ENGINE_DEAD, Scope.ENGINE),
    ],
)
@pytest.mark.parametrize(
    ("restart", "action"),
    [
        (Restart.POSSIBLE, Action.RESTART_PROCESS),
        (Restart.NOT_ALLOWED, Action.NONE),
        (Restart.SPENT, Action.GIVE_UP),
    ],
)
def test_a_process_that_is_of_no_more_use_is_restarted_where_that_is_possible(diagnosis, restart, action):
    """A poisoned process is never used again for a retry; past the budget the guard gives up."""
    assert decide(diagnosis, restart=restart).action is action


@pytest.mark.parametrize("restart", Restart)
@pytest.mark.parametrize(
    "diagnosis",
    [
        verdict(Kind.CUDA_ILLEGAL_ACCESS, Scope.PROCESS),
        verdict(Kind.UNKNOWN, Scope.PROCESS),
        verdict(Kind.ACTOR_DIED, Scope.PROCESS),
        verdict(Kind.CUDA_DEVICE_ASSERT, Scope.PROCESS, poisoned=True, confidence=0.89),
        verdict(Kind.ENGINE_DEAD, Scope.ENGINE, confidence=0.5),
    ],
)
def test_a_process_is_not_ended_for_a_scope_nor_below_certainty(diagnosis, restart):
    """Only where it is proved that every later call would fail too; else it is answered."""
    assert not needs_new_process(diagnosis)
    assert decide(diagnosis, restart=restart).action is Action.NONE


@pytest.mark.parametrize("scope", [Scope.GROUP, Scope.NODE, Scope.ENGINE])
def test_what_a_single_call_cannot_cure_goes_out_as_it_is(scope):
    """A broken collective or a lost node is for those who see more than one process."""
    assert decide(verdict(Kind.NCCL_TIMEOUT, scope)).action is Action.NONE


def test_a_death_elsewhere_never_ends_this_process():
    """An actor that calls a dead actor is innocent."""
    assert decide(verdict(Kind.ACTOR_DIED, Scope.PROCESS), restart=Restart.ELSEWHERE).action is Action.NONE


def test_the_reason_names_the_budget_that_is_spent():
    """Who reads the incident must see what to raise."""
    poisoned = verdict(Kind.CUDA_DEVICE_ASSERT, Scope.PROCESS, poisoned=True)
    remedy = decide(poisoned, restart=Restart.SPENT)
    assert "2 process restarts within 1800 s" in remedy.reason


@given(verdicts, st.integers(0, 5), restarts, st.integers(0, 3))
def test_a_call_that_must_not_run_twice_is_never_repeated(diagnosis, attempt, restart, retries):
    """Neither here nor, by a decision of ours, after its retries."""
    policy = GuardPolicy(call_retries=retries)
    remedy = decide(diagnosis, attempt=attempt, idempotent=False, restart=restart, policy=policy)
    assert remedy.action is not Action.RETRY


@given(verdicts, st.integers(0, 9), restarts, st.integers(0, 3), st.booleans())
def test_repeats_are_bounded_and_restarts_only_where_they_may_be(
    diagnosis, attempt, restart, retries, idempotent
):
    """The bounds that hold for every diagnosis a catalog could ever give."""
    policy = GuardPolicy(call_retries=retries)
    action = decide(diagnosis, attempt=attempt, idempotent=idempotent, restart=restart, policy=policy).action
    if action is Action.RETRY:
        assert attempt < retries
        assert not needs_new_process(diagnosis)
        assert not diagnosis.deterministic
    if action is Action.RESTART_PROCESS:
        assert restart is Restart.POSSIBLE
        assert needs_new_process(diagnosis)
        assert diagnosis.confidence >= CERTAIN
        assert diagnosis.poisoned or diagnosis.kind is Kind.ENGINE_DEAD


@given(verdicts, restarts)
def test_only_known_transients_are_repeated(diagnosis, restart):
    """An unknown failure is an answer, not an experiment."""
    if decide(diagnosis, restart=restart).action is Action.RETRY:
        assert diagnosis.kind in TRANSIENT
