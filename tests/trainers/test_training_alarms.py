"""Alarms of training: planted collapses are told in time, healthy curves hear nothing, odd input never raises."""

from __future__ import annotations

import logging
import math
import pickle
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rayguard
from rayguard.errors import ConfigError
from rayguard.recovery.journal import Journal
from rayguard.trainers.training_alarms import KINDS
from tests.trainers.training_curves import SHAPES, false_alarms, healthy

AT = 150  # where it goes wrong


def fallen(numbers, k, before):
    numbers["reward"] = min(before) - 12 * (max(before[-20:]) - min(before[-20:])) * min(1.0, (k + 1) / 10)


def blown_up(numbers, k, _):
    numbers["kl"] *= 1.25 ** (k + 1)


def jumped(numbers, k, _):
    numbers["kl"] *= 20


def collapsed(numbers, k, _):
    numbers["entropy"] *= 1 - 0.98 * min(1.0, (k + 1) / 10)


def faded(numbers, k, _):
    numbers["entropy"] *= 0.94 ** (k + 1)


def equal(numbers, k, _):
    numbers["rewards_by_group"] = [[0.0] * 8] * 16


def spiked(numbers, k, _):
    numbers["grad_norm"] *= 10


PLANTED = [
    (fallen, "reward_collapse", 12),
    (blown_up, "kl_blow_up", 12),
    (jumped, "kl_blow_up", 4),
    (collapsed, "entropy_collapse", 12),
    (faded, "entropy_collapse", 50),
    (equal, "zero_variance", 10),
    (spiked, "gradient_spikes", 6),
]


def run(planted, shape, seed, steps=AT + 60, **options):
    """Return the alarms of a run that goes wrong at ``AT``."""
    alarms, told, before = rayguard.TrainingAlarms(journal=False, **options), [], []
    for step, numbers in enumerate(healthy(shape, seed, steps)):
        if step >= AT:
            planted(numbers, step - AT, before)
        else:
            before.append(numbers["reward"])
        told += alarms.observe(step, **numbers)
    return told


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("planted", "kind", "within"), PLANTED, ids=[one[0].__name__ for one in PLANTED])
def test_a_planted_collapse_is_told_in_time(planted, kind, within, shape):
    """By its name, since about the step at which it began, and nothing else with it."""
    alarm, *more = run(planted, shape, seed=1)
    assert {alarm.kind, *(one.kind for one in more)} == {kind}
    assert len(more) <= (planted is faded)  # at half of what was usual, then at next to nothing
    assert AT <= alarm.step <= AT + within, str(alarm)
    assert AT - 3 <= alarm.since_step <= alarm.step
    assert alarm.kind in str(alarm)
    assert f"at step {alarm.step}" in alarm.message
    assert pickle.loads(pickle.dumps(alarm)) == alarm


@pytest.mark.parametrize("shape", SHAPES)
def test_a_healthy_run_hears_nothing(shape):
    """Noisy, drifting, warming up, heavy-tailed; the rate over many seeds: ``tests.trainers.training_curves``."""
    alarms = rayguard.TrainingAlarms(journal=False)
    told = [
        one
        for seed in (1, 2)
        for k, n in enumerate(healthy(shape, seed, 250))
        for one in alarms.observe(k, **n)
    ]
    assert told == []


def test_the_rate_is_counted_by_shape_and_kind():
    """What the module prints."""
    assert sum(false_alarms([5], steps=70).values()) == 0


def test_a_slow_loss_of_what_was_gained_is_told():
    """No step of it is unusual; a window moves with it."""
    alarms = rayguard.TrainingAlarms(journal=False)
    curve = [min(1.0, k / 100) + 0.02 * (k % 3) for k in range(200)] + [1 - k / 150 for k in range(150)]
    told = [one for step, reward in enumerate(curve) for one in alarms.observe(step, reward=reward)]
    assert [one.kind for one in told] == ["reward_collapse"]
    assert 250 < told[0].step < 320


def test_the_thresholds_can_be_read_and_are_what_is_judged_by():
    """None while nothing is known."""
    alarms = rayguard.TrainingAlarms(journal=False)
    assert dict(alarms.thresholds()) == dict.fromkeys(KINDS)
    for step in range(80):
        alarms.observe(
            step, reward=1 + 0.01 * (step % 5), kl=0.1, entropy=0.5, grad_norm=1.0, zero_variance=0.2
        )
    limits = alarms.thresholds()
    assert limits["zero_variance"] == 0.9
    assert 0.7 < limits["reward_collapse"] < 1
    assert limits["kl_blow_up"] == pytest.approx(0.3)
    assert limits["entropy_collapse"] == pytest.approx(0.25)
    told = [alarms.observe(80 + k, reward=limits["reward_collapse"] - 1e-6, kl=0.29) for k in range(3)]
    assert [len(one) for one in told] == [0, 0, 1]


def test_an_alarm_comes_again_only_after_the_curve_was_back():
    """Once for each time that it goes wrong."""
    alarms = rayguard.TrainingAlarms(journal=False)
    norms = [1.0] * 70 + [9.0] * 8 + [1.0] * 4 + [9.0] * 8 + [1.0] * 10
    told = [one.step for step, norm in enumerate(norms) for one in alarms.observe(step, grad_norm=norm)]
    assert told == [72, 84]


def test_a_run_that_went_back_is_judged_by_what_was_before():
    """The collapse itself is no part of what is usual; its state is kept over a death."""
    alarms = rayguard.TrainingAlarms(journal=False)
    for step in range(100):
        alarms.observe(step, entropy=1.0)
    kept = pickle.loads(pickle.dumps(alarms.state_dict()))
    assert [one.kind for k in range(5) for one in alarms.observe(100 + k, entropy=0.01)] == [
        "entropy_collapse"
    ]
    again = rayguard.TrainingAlarms(journal=False)
    again.load_state_dict(kept)
    for life in (alarms, again):
        assert [one for k in range(20) for one in life.observe(90 + k, entropy=1.0)] == []
        assert life.thresholds()["entropy_collapse"] == pytest.approx(0.5)
    with pytest.raises(ConfigError, match="no state of TrainingAlarms"):
        again.load_state_dict({"step": 3})


def test_groups_in_any_form():
    """Tensors, dictionaries, lists; what has no group of two says nothing."""
    import torch

    for equal, mixed in (
        (torch.ones(4, 8), torch.eye(8)),
        ({"a": [1, 1], "b": [0.5, 0.5]}, {"a": [1, 0], "b": [0, 1]}),
        ([torch.zeros(3), (2, 2, None)], [[1, 2], [float("nan"), 3, 4]]),
    ):
        for rewards, expected in ((equal, ["zero_variance"]), (mixed, [])):
            alarms = rayguard.TrainingAlarms(journal=False, grace=30)
            told = [one for step in range(45) for one in alarms.observe(step, rewards_by_group=rewards)]
            assert [one.kind for one in told] == expected
    alarms = rayguard.TrainingAlarms(journal=False, grace=30)
    for rewards in ([], [[1]], "text", 3, [3], [["a", "b"]], [[None, None]]):
        alarms.observe(0, rewards_by_group=rewards)
    assert alarms.state_dict()["curves"]["zero_variance"]["values"] == []


odd = (
    st.none()
    | st.floats()
    | st.integers()
    | st.text(max_size=3)
    | st.lists(st.floats(), max_size=3)
    | st.booleans()
)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(odd, odd, odd, odd, odd), max_size=60), st.integers(30, 40))
def test_no_input_raises(rows, grace):
    """A trainer must not die of its alarms."""
    alarms = rayguard.TrainingAlarms(journal=False, grace=grace)
    for step, reward, kl, entropy, groups in rows:
        alarms.observe(step, reward=reward, kl=kl, entropy=entropy, grad_norm=groups, rewards_by_group=groups)
        assert all(one is None or not math.isnan(one) for one in alarms.thresholds().values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 3}, "window must be a whole number from 20 to 10000; got 3"),
        ({"grace": 1.5}, "grace must be"),
        ({"patience": True}, "patience must be a whole number from 1 to 10"),
        ({"only": ("loss",)}, "only must be a tuple out of reward_collapse"),
        ({"only": "zero_variance"}, "only must be"),
        ({"on_alarm": 3}, "on_alarm must be a function"),
        ({"widnow": 30}, "Did you mean TrainingAlarms"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    """At once, by name."""
    with pytest.raises(ConfigError, match=words):
        rayguard.TrainingAlarms(**options)


def test_only_what_was_asked_for_is_told_and_given_to_the_function():
    """Which may act on it; what it raises comes out."""
    heard = []
    assert run(spiked, "level", 1, only=("kl_blow_up",), on_alarm=heard.append) == []
    assert run(jumped, "level", 1, only=("kl_blow_up",), on_alarm=heard.append) == heard
    assert [one.kind for one in heard] == ["kl_blow_up"]
    with pytest.raises(SystemExit):
        run(jumped, "level", 1, on_alarm=sys.exit)


def test_an_alarm_is_logged_and_an_incident(tmp_path, monkeypatch, caplog):
    """Which its user has been told of: nothing was restarted."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    alarms = rayguard.TrainingAlarms()
    with caplog.at_level(logging.WARNING, "rayguard"):
        for step in range(70):
            alarms.observe(step, grad_norm=1.0 if step < 65 else 50.0)
    assert "gradient_spikes: the gradient's norm is 50 at step 67, above 3 since step 65" in caplog.text
    (incident,) = [one for path in tmp_path.rglob("incidents.jsonl") for one in Journal(path.parent).read()]
    assert (incident.signature, incident.outcome.value) == ("training.gradient_spikes", "answered")
    assert "clip the gradient" in incident.advice
    assert [one.kind for one in alarms.told] == ["gradient_spikes"]


def test_it_needs_neither_torch_nor_ray():
    """Any loop can have it."""
    code = (
        "import sys, rayguard; a = rayguard.TrainingAlarms();"
        "[a.observe(k, reward=1.0) for k in range(99)];"
        "print([name for name in ('torch', 'vllm', 'ray', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
