"""What the checks of frameworks print, as ``make check-frameworks`` reads it."""

from __future__ import annotations

import json
import sys

import pytest

from tests.check_frameworks import __main__ as command
from tests.check_frameworks import by_path, easyr1, swift, swift_served, verl, verl_own_tests
from tests.check_frameworks.swift_parts.server import ENGINE
from tests.check_frameworks.swift_parts.training import Trained
from tests.check_frameworks.verl_own_tests import PASSED, RunOfTests

VERL = [
    {"version": "0.9.1", "start_s": 20.0},
    {
        "fault": "rank 1 killed",
        "bare": "ActorDiedError after 0.3 s",
        "survived": True,
        "seconds": 4.0,
        "ratio_to_restart": 0.2,
        "restart_s": 20.0,
        "said": "",
    },
    {"check": "handles given to others", "holds": True},
    {"no_fault_identical": True},
]
KILLED = "update_actor 1 2"
BARE = {"run": "no fault, bare", "holds": True, "code": 0, "seconds": 60.0, "sums": [1.0, 2.0]}
EASYR1 = [
    {"run": "places", "holds": True},
    BARE,
    {
        **BARE,
        "run": f"{KILLED}, bare",
        "code": 1,
        "sums": [1.0],
        "said": "a line\nray.exceptions.ActorDiedError: gone\n",
    },
    {**BARE, "run": KILLED, "seconds": 90.0, "recover_s": [24.0, 30.0]},
    {**BARE, "run": f"{KILLED}, workers preloaded", "seconds": 50.0, "recover_s": [6.0, 4.0]},
    {**BARE, "run": "no fault, guarded"},
]


def test_lines_of_verl_are_an_answer():
    """Each fault with its own numbers."""
    found = verl.read_lines(VERL)
    assert found.good
    assert (found.version, found.no_fault_identical) == ("0.9.1", True)
    assert [(one.fault, one.survived, one.seconds, one.ratio_to_restart) for one in found.faults] == [
        ("rank 1 killed", True, 4.0, 0.2)
    ]


def test_what_does_not_hold_is_a_problem():
    """A fault that was not survived, another check, and a run that ended early."""
    lost = {**VERL[1], "survived": False, "said": "ValueError: why"}
    found = verl.read_lines([VERL[0], lost, {"check": "handles", "holds": False}])
    assert not found.good
    assert found.problems == ["rank 1 killed: ValueError: why", "handles: not as it should be"]
    assert not verl.read_lines(VERL[:-1]).good, "nobody has said that a run without a fault is the same"


def test_a_part_that_answers_differently_without_a_fault_is_bad():
    """One of two is not enough."""
    assert not verl.read_lines([*VERL, {"no_fault_identical": False}]).no_fault_identical


OWN_TESTS = {
    "tests.single_controller.test_decorator_on_cpu.test_one": PASSED,
    "tests.single_controller.test_rayguard_presence.test_two": PASSED,
}


def test_verls_own_tests_are_an_answer():
    """All pass both times: its own are counted, the one beside them is not."""
    found = verl_own_tests.told("0.9.1", RunOfTests(OWN_TESTS, 100.0), RunOfTests(OWN_TESTS, 110.0))
    assert found.good
    assert found.ran.startswith("1 of its own tests")


@pytest.mark.parametrize(
    ("bare", "guarded"),
    [
        (OWN_TESTS, dict.fromkeys(OWN_TESTS, "failure: why")),
        (dict.fromkeys(OWN_TESTS, "failure: why"),) * 2,
        (OWN_TESTS, dict(list(OWN_TESTS.items())[:1])),
        (dict(list(OWN_TESTS.items())[:1]),) * 2,
        ({"all": "ended with 2"},) * 2,
        ({}, {}),
    ],
    ids=["worse with it", "bad in both", "one is gone", "nobody looked at rayguard", "no report", "nothing"],
)
def test_verls_own_tests_that_do_not_all_pass_are_bad(bare, guarded):
    """Also where both runs are alike: then nothing is shown."""
    assert not verl_own_tests.told("0.9.1", RunOfTests(bare, 1.0), RunOfTests(guarded, 1.0)).good


def test_runs_of_easyr1_are_an_answer():
    """A fault is two runs: the one of the same name that is bare says how it ends, and when."""
    found = easyr1.read_lines(EASYR1, "b44b311")
    assert found.good
    assert [(one.fault, one.seconds, one.ratio_to_restart) for one in found.faults] == [
        (KILLED, 30.0, 0.4),
        (f"{KILLED}, workers preloaded", 6.0, 0.1),
    ]
    assert found.faults[0].bare == "exit 1: ray.exceptions.ActorDiedError: gone"


def test_without_a_checkout_easyr1_is_skipped_and_said_so(monkeypatch):
    """That is no error."""
    monkeypatch.delenv(easyr1.SOURCE, raising=False)
    found = command._checked("easyr1")
    assert found == {"skipped": f"{easyr1.SOURCE} is not set: no checkout of EasyR1", "problems": []}


def test_a_script_that_ends_without_a_word_is_a_problem(tmp_path, monkeypatch):
    """It printed nothing bad, and ended with 3."""
    script = tmp_path / "script.py"
    script.write_text("print('no JSON'); raise SystemExit(3)")
    monkeypatch.setattr(by_path, "ROOT", tmp_path)
    lines = by_path.lines_of(sys.executable, "script.py")
    assert [by_path.problem(one) for one in lines] == ["script.py: it ended with 3"]


def left_by(folder, *launches):
    """Write what launches of ms-swift leave: of each step its loss, and a checkpoint; return the run."""
    for number, losses in enumerate(launches):
        place = folder / f"v{number}-20260101-000000"
        for step in losses:
            (place / f"checkpoint-{step}").mkdir(parents=True)
            (place / f"checkpoint-{step}" / "model.safetensors").write_text(str(losses[step]))
        lines = [{"loss": loss, "global_step/max_steps": f"{step}/4"} for step, loss in losses.items()]
        (place / "logging.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"train_loss": 0.5}])))
    return Trained(0, "", 1.0, folder)


def test_launches_of_ms_swift_are_one_run(tmp_path):
    """The newest checkpoint is the last launch's; a step that was made twice counts as it was made last."""
    found = left_by(tmp_path, {1: 0.1, 2: 0.2, 9: 0.9, 10: 1.0}, {10: 1.5, 11: 1.1})
    assert [one.name for one in found.checkpoints][-3:] == ["checkpoint-10", "checkpoint-10", "checkpoint-11"]
    assert found.curve() == [0.1, 0.2, 0.9, 1.5, 1.1]
    assert found.weights() == b"1.1"


def test_runs_of_ms_swift_that_differ_are_not_the_same(tmp_path):
    """In a loss of one step, in the weights, or in how far they came."""
    whole = {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
    runs = [whole, whole, {**whole, 4: 0.5}, {1: 0.1}]
    bare, same, other, short = (left_by(tmp_path / str(at), run) for at, run in enumerate(runs))
    assert swift._same({"bare": bare, "guarded": same})
    assert not swift._same({"bare": bare, "guarded": other})
    assert not swift._same({"bare": short, "guarded": short})


WHOLE = [[[5, 6], [-1.0, -2.0]], [[7], [-3.0]]]


@pytest.mark.parametrize(
    ("answer", "error", "survived"),
    [
        (WHOLE, "", True),
        ([[[5, 6], [-1.0, -2.000001]], [[7], [-3.0]]], "", True),
        ([[[5, 6], [-1.0, -2.1]], [[7], [-3.0]]], "", False),
        ([[[5, 8], [-1.0, -2.0]], [[7], [-3.0]]], "", False),
        ([], "RuntimeError('Multiple errors')", False),
    ],
    ids=["the same", "to rounding", "other weights", "other tokens", "an error"],
)
def test_an_answer_of_a_rollout_server_is_compared_with_that_without_a_fault(answer, error, survived):
    """Weights that were lost show in its tokens, or in their log-probabilities."""
    bare = {"whole": WHOLE, "struck": {ENGINE: {"error": "500", "well": "ok"}}}
    struck = {ENGINE: {"answer": answer, "error": error, "seconds": 30.0}}
    found = swift_served._fault(ENGINE, bare, {"struck": struck, "restart_s": 60.0})
    assert (found.survived, found.ratio_to_restart) == (survived, 0.5)
    assert "500" in found.bare
