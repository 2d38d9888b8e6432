"""What to do about an engine's fault: invariants and cases."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.ladder import Ladder
from rayguard.recovery.machine import EngineState, Failed, build_failed, handle, take_back
from rayguard.recovery.policy import GuardPolicy
from rayguard.recovery.remedy import Action

POLICY = GuardPolicy(
    engine_budget=RestartBudget(max_restarts=4, within_s=100.0),
    process_budget=RestartBudget(max_restarts=1, within_s=100.0),
)


def diagnosis(signature="dead", **changes):
    values = {"kind": Kind.ENGINE_DEAD, "scope": Scope.ENGINE, "cause": "x", "confidence": 0.9}
    return Diagnosis(signature=signature, **{**values, **changes})


def failed(now=0.0, **changes):
    what = changes.pop("diagnosis", None) or diagnosis()
    return Failed(diagnosis=what, now=now, **changes)


signatures = st.sampled_from(["a", "b", "c"])
events = st.builds(
    lambda name, gap, det, same, scope, alive, restartable: (
        gap,
        {
            "diagnosis": diagnosis(
                name,
                deterministic=det,
                retry_same_settings=same,
                scope=scope,
                cures=("chunked_prefill_off",) if det else (),
            ),
            "alive": alive,
            "restartable": restartable,
        },
    ),
    signatures,
    st.floats(0, 60),
    st.booleans(),
    st.booleans(),
    st.sampled_from(list(Scope)),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(events, max_size=30))
def test_restarts_never_exceed_the_budgets_and_settings_only_grow(faults):
    """Whatever happens, the budgets hold and no fault ever makes the settings less safe."""
    state, now = EngineState(), 0.0
    engine_restarts, process_restarts = [], []
    for gap, what in faults:
        now += gap
        before = state
        state, decision = handle(state, failed(now, **what), POLICY)
        assert set(before.applied) <= set(state.applied)
        assert set(before.pinned) <= set(state.pinned)
        if decision.remedy.action is Action.RESTART_ENGINE:
            engine_restarts.append(now)
        if decision.remedy.action is Action.RESTART_PROCESS:
            process_restarts.append(now)
        assert sum(now - at < 100.0 for at in engine_restarts) <= 4
        assert sum(now - at < 100.0 for at in process_restarts) <= 1
        assert EngineState.from_json(state.to_json()) == build_without_deaths(state)


def build_without_deaths(state):
    from dataclasses import replace

    return replace(state, deaths={})


@given(events)
def test_a_living_engine_is_not_restarted_for_an_error_that_is_not_its_own(event):
    """A wrong request or the user's own bug never costs an engine."""
    _, what = event
    what["alive"] = True
    scope = what["diagnosis"].scope
    _, decision = handle(EngineState(), failed(1.0, **what), POLICY)
    if scope in {Scope.REQUEST, Scope.CODE, Scope.JOB, Scope.GROUP, Scope.NODE}:
        assert decision.remedy.action in {Action.ANSWER_ERROR, Action.NONE}


def test_a_transient_fault_first_gets_the_same_settings_and_then_climbs():
    """A killed engine is restarted as it was; the second time soon after, one rung safer."""
    state, first = handle(EngineState(), failed(1.0), POLICY)
    state, second = handle(state, failed(20.0), POLICY)
    assert first.remedy.applied == ()
    assert second.remedy.applied == ("async_scheduling_off",)


def test_a_transient_fault_long_after_the_last_one_does_not_climb():
    """Two kills in two hours are two accidents."""
    state, _ = handle(EngineState(), failed(1.0), POLICY)
    _, later = handle(state, failed(1000.0), POLICY)
    assert later.remedy.applied == ()


def test_what_no_setting_avoids_climbs_no_rung():
    """Engines killed from outside come back as fast as they were, however often."""
    state = EngineState()
    for i in range(4):
        what = diagnosis("killed", settings_help=False)
        state, decision = handle(state, failed(float(i), diagnosis=what), POLICY)
        assert decision.remedy.applied == ()


def test_a_deterministic_fault_gets_its_cure_at_once_and_keeps_it():
    """What is known to fail again with the same settings is cured at its first appearance."""
    what = diagnosis("natural", deterministic=True, cures=("chunked_prefill_off",))
    state, decision = handle(EngineState(), failed(1.0, diagnosis=what), POLICY)
    assert decision.remedy.applied == ("chunked_prefill_off",)
    assert state.pinned == ("chunked_prefill_off",)
    assert take_back(state, POLICY, 1e9) is None


def test_a_fault_with_a_cure_of_its_own_is_not_blamed_on_what_was_taken_back():
    """It gets its cure at once; the setting on probation stays off and on probation."""
    policy = GuardPolicy()
    state = EngineState(on_probation="async_scheduling_off", last_fault_at=100.0)
    natural = diagnosis(deterministic=True, cures=("chunked_prefill_off",))
    state, decision = handle(state, Failed(diagnosis=natural, now=110.0), policy)
    assert decision.remedy.applied == ("chunked_prefill_off",)
    assert state.on_probation == "async_scheduling_off"
    blamed = diagnosis(deterministic=True, cures=("async_scheduling_off",))
    _, decision = handle(state, Failed(diagnosis=blamed, now=120.0), policy)
    assert decision.remedy.applied == ("chunked_prefill_off", "async_scheduling_off")
    state, decision = handle(state, Failed(diagnosis=natural, now=130.0), policy)
    assert decision.remedy.added == "async_scheduling_off", "the cure is in force: the next rung"
    for now in (140.0, 150.0):
        state, decision = handle(state, Failed(diagnosis=diagnosis("other"), now=now), policy)
        assert len(set(decision.remedy.applied)) == len(decision.remedy.applied), "none twice"


def test_probation_takes_one_setting_back_and_pins_it_when_it_fails_again():
    """Up one rung after a quiet period; if the fault comes back, down for good."""
    state, _ = handle(EngineState(), failed(1.0), POLICY)
    state, _ = handle(state, failed(2.0), POLICY)
    assert state.applied == ("async_scheduling_off",)
    assert take_back(state, POLICY, 10.0) is None, "too early"
    state = take_back(state, POLICY, 2.0 + 1801.0)
    assert state is not None
    assert state.applied == ()
    state, decision = handle(state, failed(2.0 + 1900.0), POLICY)
    assert decision.remedy.applied == ("async_scheduling_off",)
    assert take_back(state, POLICY, 1e9) is None


def test_escalation_goes_from_engine_to_process_to_a_final_error():
    """Four engines, one process, then the truth."""
    state, actions = EngineState(), []
    for i in range(6):
        state, decision = handle(state, failed(float(i), restartable=True), POLICY)
        actions.append(decision.remedy.action)
    assert actions == [Action.RESTART_ENGINE] * 4 + [Action.RESTART_PROCESS, Action.GIVE_UP]
    assert [label for label, _at in state.tried][-1] == "restart_process", "giving up is no try"


def test_a_poisoned_process_of_the_engine_itself_needs_only_a_new_engine():
    """A device-side assert poisons the engine core; the actor's own process is clean."""
    what = diagnosis(kind=Kind.CUDA_DEVICE_ASSERT, scope=Scope.PROCESS, poisoned=True)
    _, apart = handle(EngineState(), failed(1.0, diagnosis=what, restartable=True), POLICY)
    _, inside = handle(EngineState(), failed(1.0, diagnosis=what, own_process=True, restartable=True), POLICY)
    assert apart.remedy.action is Action.RESTART_ENGINE
    assert inside.remedy.action is Action.RESTART_PROCESS


def test_the_request_that_kills_is_found_and_the_others_go_on():
    """Three deaths: two in company, the last one alone."""
    state = EngineState()
    state, one = handle(state, failed(1.0, requests=("a", "poison", "b")), POLICY)
    assert (one.suspects, one.quarantined) == ((), ())
    state, two = handle(state, failed(2.0, requests=("a", "poison", "c")), POLICY)
    assert two.suspects == ("a", "poison"), "both ran on two dead engines: one at a time now"
    state, three = handle(state, failed(3.0, requests=("poison", "c"), held=("a",)), POLICY)
    assert three.quarantined == ("poison",)
    assert "a" in three.suspects, "it waited its turn: still suspected, not guilty"
    assert "c" in three.suspects


def play(*deaths, policy=None, **more):
    """Let engines die one after the other; return the state and the decisions."""
    state, decisions = EngineState(), []
    for number, death in enumerate(deaths):
        event = failed(1.0 + number, **{**more, **death})
        state, decision = handle(state, event, policy or GuardPolicy())
        decisions.append(decision)
    return state, decisions


def test_no_setting_is_taken_for_a_request_that_was_on_each_dead_engine():
    """It is the suspect, not the settings; one that comes to every engine anew is another matter."""
    _, same = play({"requests": ("p", "a")}, {"requests": ("p", "a")}, {"requests": ("p",), "held": ("a",)})
    assert [d.remedy.applied for d in same] == [(), (), ()]
    assert same[-1].quarantined == ("p",)
    _, others = play({"requests": ("a",)}, {"requests": ("b",)}, {"requests": ("c",)})
    assert others[-1].remedy.applied == ("async_scheduling_off", "chunked_prefill_off")


def test_a_setting_that_was_taken_while_a_poison_ran_is_taken_back_with_it():
    """With the restart that is due anyway; what was taken for others stays."""
    state, decisions = play(
        {"requests": ("a",)},
        {"requests": ("b",)},  # a rung, while b ran
        {"requests": ("p", "c")},  # a rung, while p ran
        {"requests": ("p", "c")},
        {"requests": ("p",), "held": ("c",)},
    )
    assert decisions[2].remedy.applied == ("async_scheduling_off", "chunked_prefill_off")
    assert decisions[-1].quarantined == ("p",)
    assert decisions[-1].remedy.applied == state.applied == ("async_scheduling_off",)
    assert decisions[-1].remedy.added == ""


def test_a_cure_that_is_a_guess_goes_with_the_poison_too():
    """A failed assertion of a scheduler may be of its own making, or of a request's."""
    what = diagnosis(
        "assertion", cures=("chunked_prefill_off", "prefix_caching_off"), retry_same_settings=False
    )
    _, decisions = play(*[{"requests": ("p",), "diagnosis": what}] * 3)
    assert [d.remedy.applied for d in decisions] == [("chunked_prefill_off",)] * 2 + [()]


def test_a_setting_that_a_poison_brought_back_from_probation_goes_again():
    """It was pinned for what the poison did."""
    state = EngineState(on_probation="eager", last_fault_at=100.0)
    for at in (101.0, 102.0, 103.0):
        state, decision = handle(state, failed(at, requests=("p",)), GuardPolicy())
    assert decision.quarantined == ("p",)
    assert (state.applied, state.pinned) == ((), ())


def test_a_cure_stays_whoever_ran():
    """What a diagnosis names is no guess."""
    what = diagnosis("natural", deterministic=True, cures=("chunked_prefill_off",))
    state, _ = play(*[{"requests": ("p",), "diagnosis": what}] * 3)
    assert state.applied == state.pinned == ("chunked_prefill_off",)


def test_where_one_request_after_the_other_is_found_guilty_it_is_the_settings():
    """Of two that kill in the same way it may still be the requests."""
    names = ("a", "b", "c", "d")
    deaths = [{"requests": names}] * 2 + [
        {"requests": (name,), "held": names[number + 1 :]} for number, name in enumerate(names)
    ]
    _, decisions = play(*deaths)
    assert [d.quarantined for d in decisions] == [(), (), ("a",), ("b",), ("c",), ("d",)]
    assert [len(d.remedy.applied) for d in decisions] == [0, 0, 0, 0, 1, 2]


def test_no_request_is_blamed_while_a_call_was_in_the_engine():
    """However often; a call that only reads is no alibi."""
    state, decisions = play(*[{"requests": ("a", "b"), "calls": ("collective_rpc('x')",)}] * 5)
    assert state.deaths == {}
    assert all(d.quarantined == d.suspects == d.remedy.applied == () for d in decisions)
    _, reading = play(*[{"requests": ("p",), "reads": ("is_sleeping",)}] * 3)
    assert reading[-1].quarantined == ("p",)


def test_a_call_that_reads_is_made_again_until_it_was_in_too_many_engines():
    """Then it is answered with the cause, as a request is."""
    _, decisions = play(*[{"reads": ("is_sleeping",)}] * 3)
    assert [d.calls for d in decisions] == [(), (), ("is_sleeping",)]


def test_answered_requests_are_forgotten():
    """The book of deaths holds nobody who is not waiting."""
    state, _ = handle(EngineState(), failed(1.0, requests=("a", "b")), POLICY)
    state, _ = handle(state, failed(2.0, requests=("b",)), POLICY)
    assert state.deaths == {"b": 2}


def test_a_rung_the_engine_cannot_be_built_with_is_not_tried_again():
    """What the installed engine refuses is skipped."""
    state, _ = handle(EngineState(), failed(1.0), POLICY)
    state, _ = handle(state, failed(2.0), POLICY)
    state = build_failed(state, "async_scheduling_off")
    assert state.applied == ()
    state, decision = handle(state, failed(3.0), POLICY)
    assert decision.remedy.applied == ("chunked_prefill_off",)


@given(
    st.lists(st.sampled_from(Ladder().rungs), unique=True),
    st.lists(st.sampled_from(Ladder().rungs), unique=True),
)
def test_the_ladder_names_each_rung_once_and_cures_first(applied, cures):
    """The next rung is never one that is in force, and a known cure comes before the general order."""
    name = Ladder().next(tuple(applied), tuple(cures))
    assert name not in applied
    open_cures = [c for c in cures if c not in applied]
    if open_cures:
        assert name == open_cures[0]
    assert (name is None) == (set(applied) == set(Ladder().rungs))
