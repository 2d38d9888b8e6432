"""The callback, driven by transformers' own handler of callbacks in the order of its trainer's loop."""

from __future__ import annotations

import logging
import math
import os
import pickle
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
import torch
from transformers import trainer_callback as hf

from rayguard.actors.memory import call_boundary
from rayguard.errors import ConfigError
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.frameworks import told
from rayguard.frameworks.finite import not_finite
from rayguard.frameworks.not_finite_error import GRADIENTS, PARAMETERS, NotFiniteError
from rayguard.frameworks.slow_steps import SlowSteps
from rayguard.frameworks.step_pace import LEAST_S, StepPace
from rayguard.frameworks.swift import PLUGIN
from rayguard.frameworks.swift.callback import register
from rayguard.frameworks.trainer_callback import TrainerGuard
from rayguard.frameworks.trl import Callback
from rayguard.frameworks.trl.every_trainer import add_to_every_trainer
from rayguard.logs.report import diagnose_text
from rayguard.recovery.journal import Journal

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home of its own for each test, and no watch left behind."""
    monkeypatch.setattr("rayguard.frameworks.trainer_callback._stands_for", [])
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    watch, call_boundary.watch = call_boundary.watch, None
    if watch is not None:
        watch.close()


def incidents_in(home):
    return list(Journal(home).read())


class Loop:
    """The loop of transformers' trainer, as far as callbacks see it: what is called, in which order, with what."""

    def __init__(self, *callbacks, save_steps=1, optimizer=None):
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        self.optimizer = optimizer or torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.args = types.SimpleNamespace(
            logging_strategy=hf.IntervalStrategy.STEPS, logging_first_step=False, eval_strategy=hf.IntervalStrategy.NO,
            save_strategy=hf.SaveStrategy.STEPS, eval_delay=0, deepspeed=None,
        )  # fmt: skip
        self.state = hf.TrainerState(logging_steps=1, eval_steps=1, save_steps=save_steps, max_steps=100)
        self.control = hf.TrainerControl()
        self.handler = hf.CallbackHandler(
            [hf.DefaultFlowCallback, *callbacks], self.model, None, self.optimizer, None
        )
        self.saved = []
        self.control = self.handler.on_init_end(self.args, self.state, self.control)

    def train(self, gradients, logs=None):
        """Make a step for each of ``gradients``."""
        self.control = self.handler.on_train_begin(self.args, self.state, self.control)
        for gradient in gradients:
            self.control = self.handler.on_step_begin(self.args, self.state, self.control)
            for one in self.model.parameters():
                one.grad = torch.full_like(one, gradient)
            self.control = self.handler.on_pre_optimizer_step(self.args, self.state, self.control)
            self.optimizer.step()
            self.control = self.handler.on_optimizer_step(self.args, self.state, self.control)
            self.model.zero_grad()
            self.state.global_step += 1
            self.control = self.handler.on_step_end(self.args, self.state, self.control)
            if logs is not None:
                self.handler.on_log(self.args, self.state, self.control, logs)
            if self.control.should_save:
                self.saved.append(self.state.global_step)
                self.control = self.handler.on_save(self.args, self.state, self.control)
        self.control = self.handler.on_train_end(self.args, self.state, self.control)


def values(loop):
    return [one.detach().clone() for one in loop.model.parameters()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_without_a_fault_a_run_is_the_same_to_the_last_bit(home):
    """Parameters, saves and what callbacks decide."""
    runs = []
    for callbacks in ([], [Callback()]):
        torch.manual_seed(1)
        loop = Loop(*callbacks, save_steps=2)
        loop.train([0.1, -0.2, 0.3, 0.4])
        runs.append((loop.saved, values(loop)))
    assert runs[0][0] == runs[1][0] == [2, 4]
    assert same(runs[0][1], runs[1][1])
    assert incidents_in(home) == []


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_step_whose_gradient_is_not_finite_is_left_out_and_told(home, bad):
    """Its parameters are as before, those of the others move, and all that is saved is finite."""
    callback = Callback()
    loop = Loop(callback)
    before = values(loop)
    loop.train([bad])
    assert same(before, values(loop))
    loop.train([0.5, bad, 0.5])
    assert not same(before, values(loop))
    assert all(torch.isfinite(one).all() for one in values(loop))
    assert (callback.steps.taken, callback.steps.skipped) == (2, 2)
    told_of = incidents_in(home)
    assert [(one.kind, one.outcome.value, one.remedy) for one in told_of] == [
        ("numeric_nan", "recovered", "skip_step")
    ] * 2
    assert "at step 1 gradients are NaN or infinite: 0.weight" in told_of[0].cause


def test_bare_the_same_gradient_spoils_all_that_is_saved_after_it():
    """What the callback is for."""
    loop = Loop()
    loop.train([NAN])
    assert loop.saved == [1]
    assert not any(torch.isfinite(one).any() for one in values(loop))


@pytest.mark.parametrize(("options", "at"), [({}, 4), ({"patience": 1}, 2), ({"not_finite": "stop"}, 2)])
def test_so_many_in_a_row_end_the_run_before_anything_is_saved(home, options, at):
    """With the step, the first names and what to do; the log is read as what it is."""
    loop = Loop(Callback(**options))
    with pytest.raises(
        NotFiniteError, match=f"at step {at} gradients are NaN or infinite: 0.weight"
    ) as caught:
        loop.train([1.0, NAN, NAN, NAN])
    assert all(torch.isfinite(one).all() for one in values(loop))
    assert loop.saved == list(range(1, at))
    assert incidents_in(home)[-1].outcome.value == "failed"
    assert "rayguard run" in str(caught.value)


@pytest.mark.parametrize("what", [GRADIENTS, PARAMETERS])
def test_the_error_is_diagnosed_as_what_it_is_and_crosses_processes(what):
    """A runner must not take it for a bug in the user's code, which is never tried again."""
    error = NotFiniteError(what, 7, ("a.b",), "Go on from an earlier one")
    again = pickle.loads(pickle.dumps(error))
    assert (again.what, again.step, again.names, str(again)) == (what, 7, ("a.b",), str(error))
    text = (
        "Traceback (most recent call last):\n"
        '  File "/home/me/train.py", line 9, in <module>\n    trainer.train()\n'
        f"rayguard.frameworks.not_finite_error.NotFiniteError: {error}\n"
    )
    diagnosis = diagnose_text(text).diagnosis
    assert (diagnosis.kind, diagnosis.scope) == (Kind.NUMERIC_NAN, Scope.JOB)


@pytest.mark.parametrize("how", ["steps", "epoch", "best"])
def test_parameters_that_are_not_finite_are_never_saved(home, how):
    """However they became so, and whatever decides that a checkpoint is due."""
    loop = Loop(Callback(), save_steps=1 if how == "steps" else 10**6)
    loop.train([0.1])
    with torch.no_grad():
        loop.model[1].bias.fill_(NAN)
    loop.saved.clear()
    # A new run: the same model goes on, and had been finite at its first step.
    loop.control = loop.handler.on_train_begin(loop.args, loop.state, loop.control)
    for callback in loop.handler.callbacks[1:]:
        callback._bad_from_the_start = frozenset()
    with pytest.raises(NotFiniteError, match=r"parameters are NaN or infinite: 1\.bias"):
        if how == "steps":
            loop.control = loop.handler.on_step_end(loop.args, loop.state, loop.control)
        elif how == "epoch":
            loop.control.should_save = True
            loop.handler.call_event("on_epoch_end", loop.args, loop.state, loop.control)
        else:
            loop.args.save_strategy = hf.SaveStrategy.BEST
            loop.handler.on_evaluate(loop.args, loop.state, loop.control, {})
    assert loop.saved == []
    assert incidents_in(home)[-1].kind == "numeric_nan"


def test_what_a_model_came_with_is_told_and_ends_nothing(home, caplog):
    """A parameter that is NaN and never used, say."""
    loop = Loop(Callback())
    with torch.no_grad():
        loop.model[0].weight[0, 0] = NAN
    with caplog.at_level(logging.ERROR, "rayguard"):
        loop.train([0.1])
    assert "before the first step" in caplog.text
    assert loop.saved == [1]


class Scaled(torch.optim.AdamW):
    scaler = object()


def test_float16s_scaler_is_left_alone(home):
    """Its gradients overflow every now and then, and it leaves the step out itself."""
    model = torch.nn.Linear(1, 1)
    callback = Callback()
    loop = Loop(callback, optimizer=Scaled(model.parameters()))
    with pytest.raises(NotFiniteError, match="parameters"):  # nobody left it out here: seen before the save
        loop.model.requires_grad_(False)
        with torch.no_grad():
            loop.handler.on_train_begin(loop.args, loop.state, loop.control)
            loop.model[0].bias.fill_(INF)
        for one in loop.model.parameters():
            one.grad = torch.full_like(one, INF)
        loop.handler.on_pre_optimizer_step(loop.args, loop.state, loop.control)
        assert all(one.grad is not None for one in loop.model.parameters())
        loop.control.should_save = True
        loop.handler.call_event("on_epoch_end", loop.args, loop.state, loop.control)
    assert (callback.steps.taken, callback.steps.skipped) == (0, 0)


def test_of_two_in_one_run_one_acts(home):
    """The one that every trainer has, and the user's own with its options."""
    module = types.ModuleType("transformers.trainer")
    module.DEFAULT_CALLBACKS = [hf.DefaultFlowCallback]
    add_to_every_trainer(module)
    add_to_every_trainer(module)
    assert [hf.DefaultFlowCallback, Callback] == module.DEFAULT_CALLBACKS
    own = Callback(patience=9)
    loop = Loop(Callback, own)
    loop.train([NAN, 0.1])
    assert (own.steps.skipped, own.steps.taken) == (1, 1)
    assert len(incidents_in(home)) == 1


def test_a_transformers_that_is_made_otherwise_is_left_as_it_is(caplog):
    """And that is said; the same for ms-swift's table of callbacks."""
    with caplog.at_level(logging.WARNING, "rayguard"):
        add_to_every_trainer(types.ModuleType("transformers.trainer"))
        register(types.ModuleType("swift.callbacks.mapping"))
    assert "does not know this transformers" in caplog.text
    assert "does not know this ms-swift" in caplog.text


def test_ms_swift_makes_it_by_name_with_its_arguments_and_its_trainer(home):
    """``--callbacks rayguard``; a callback of that name that somebody else registered stays."""
    module = types.ModuleType("swift.callbacks.mapping")
    module.callbacks_map = {"lisa": object}
    register(module)
    made = module.callbacks_map["rayguard"]("the arguments", "the trainer")
    assert (made.args, made.trainer) == ("the arguments", "the trainer")
    loop = Loop(made)
    loop.train([NAN, 1.0])
    assert made.steps.skipped == 1
    register(module)
    assert module.callbacks_map["rayguard"] is type(made)


def test_ms_swifts_trainers_begin_with_it_though_it_replaces_the_list(tmp_path):
    """ms-swift puts a list of its own in the place of transformers' own as its trainers are imported."""
    place = tmp_path / "swift" / "trainers"
    place.mkdir(parents=True)
    (place / "patcher.py").write_text(
        "from transformers import trainer\n"
        "class Own(trainer.DefaultFlowCallback): pass\n"
        "trainer.DEFAULT_CALLBACKS = [Own]\n"
    )
    ask = (
        "from rayguard.frameworks.startup import attach; attach(); import swift.trainers.patcher;"
        "from transformers import trainer; print(*(one.__name__ for one in trainer.DEFAULT_CALLBACKS))"
    )
    found = subprocess.run(
        [sys.executable, "-c", ask],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert found.stdout.split() == ["Own", "Callback"]


def test_the_plugin_of_ms_swift_lies_alone_in_its_folder():
    """That folder comes first on the path: whatever lay beside it would hide modules of its user."""
    assert sorted(path.name for path in Path(PLUGIN).parent.glob("*.py")) == [
        "__init__.py",
        "rayguard_swift.py",
    ]
    printed = subprocess.run(
        [sys.executable, "-m", "rayguard.frameworks.swift"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert printed.stdout.strip() == PLUGIN


def test_each_event_is_one_of_transformers():
    """A name that it does not call would be silence."""
    events = {name for name in vars(TrainerGuard) if name.startswith("on_")}
    assert len(events) > 8
    assert events <= {name for name in vars(hf.TrainerCallback) if name.startswith("on_")}
    assert issubclass(Callback, hf.TrainerCallback)
    assert Callback.__init__ is TrainerGuard.__init__


@pytest.mark.parametrize("options", [{"not_finite": "ignore"}, {"patience": 0}, {"patince": 2}])
def test_options_that_make_no_sense_are_refused(options):
    """Before anything runs."""
    with pytest.raises(ConfigError):
        Callback(**options)


def test_an_error_of_ours_is_no_error_of_the_run(home, monkeypatch):
    """A look that fails is counted, and the step is taken as it would."""
    monkeypatch.setattr("rayguard.frameworks.trainer_callback.not_finite", lambda _: 1 / 0)
    loop = Loop(Callback())
    before = values(loop)
    loop.train([0.5])
    assert not same(before, values(loop))
    assert loop.saved == [1]


def test_curves_that_go_wrong_are_told(home):
    """What the trainer logs goes to the alarms of training."""
    loop = Loop(Callback(), save_steps=10**6)
    loop.train([0.1] * 80, {"reward": 0.5, "kl": 0.01, "frac_reward_zero_std": 0.0})
    loop.train([0.1] * 20, {"reward": 0.5, "kl": 5.0, "frac_reward_zero_std": 0.0})
    assert [one.signature for one in incidents_in(home)] == ["training.kl_blow_up"]


def test_memory_is_watched_while_a_run_goes_on(home):
    """With the watch of actors, whose steps are the trainer's."""
    seen = []

    class Spy(hf.TrainerCallback):
        def on_step_end(self, *_, **__):
            seen.append(call_boundary.watch)

    Loop(Spy(), Callback()).train([0.1])
    assert type(seen[0]).__name__ == "MemoryGuard"
    call_boundary.watch.close()
    call_boundary.watch = None
    seen.clear()
    Loop(Spy(), Callback(memory=None)).train([0.1])
    assert seen == [None]


# -- numbers


def test_finite_numbers_of_any_size_are_finite():
    """A norm overflows before its numbers do; integers, empty and sparse tensors are no trouble."""
    huge = torch.full((4,), 3e38)
    half = torch.full((1000,), 6e4, dtype=torch.float16)
    sparse = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.tensor([NAN]), (3,), check_invariants=True)
    fine = [("huge", huge), ("half", half), ("ids", torch.arange(3)), ("none", torch.empty(0))]
    assert not_finite(fine) == ()
    assert not_finite([]) == ()
    assert not_finite([*fine, ("sparse", sparse), ("bad", half * INF)]) == ("sparse", "bad")
    assert not_finite([(str(n), torch.tensor(NAN)) for n in range(9)]) == ("0", "1", "2", "3")


def test_what_a_rank_holds_of_a_sharded_parameter_is_looked_at():
    """ZeRO-3 leaves an empty tensor in its place, and hangs the shard on it."""
    parameter = torch.nn.Parameter(torch.empty(0))
    parameter.ds_tensor = torch.tensor([1.0, NAN])
    assert not_finite([("sharded", parameter)]) == ("sharded",)


RANK = """
import sys, torch
from rayguard.frameworks.finite import on_any_rank
rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
model = torch.nn.Linear(1, 1)
print(on_any_rank(rank == 1, model), on_any_rank(False, model))
"""


def test_a_step_is_left_out_by_all_ranks_or_by_none(tmp_path):
    """What one of two has found, both are told."""
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    assert [one.communicate(timeout=200)[0].split() for one in ranks] == [["True", "False"]] * 2


# -- slow steps


def test_the_pace_is_the_longest_step_times_five():
    """Nothing is known at first; short steps alone alarm nobody within a minute."""
    pace = StepPace()
    for seconds in (1.0, 2.0, 1.0, 1.0):
        pace.took(seconds)
    assert pace.suspicious_s() is None
    pace.took(1.0)
    assert pace.suspicious_s() == LEAST_S
    pace.took(40.0)  # one in eight makes the samples
    assert pace.suspicious_s() == 200.0
    assert math.isclose(pace.longest_s, 40.0)


class Quick(StepPace):
    def suspicious_s(self):
        return 0.05


def stuck_in_a_trainer(steps, release):
    """Stand in a frame whose file is transformers' trainer's, as a step does."""
    code = compile("def run(wait):\n    wait()\n", "/site-packages/transformers/trainer.py", "exec")
    space = {}
    exec(code, space)
    steps.begun(7)
    space["run"](lambda: release.wait(30))
    steps.ended()


def test_a_step_that_takes_far_too_long_is_told_once_with_its_stack(home):
    """While it lasts; when it ends after all, the incident says so."""
    steps, release = SlowSteps(target="Qwen", look_s=0.02, pace=Quick()), threading.Event()
    steps.start()
    runs = threading.Thread(target=stuck_in_a_trainer, args=(steps, release))
    runs.start()
    until = time.monotonic() + 30
    while not incidents_in(home) and time.monotonic() < until:
        release.wait(0.05)
    (one,) = incidents_in(home)
    assert (one.outcome.value, one.signature) == ("open", "training.slow_step")
    assert "step 7 has taken" in one.cause
    assert any("transformers/trainer.py" in line for line in one.evidence)
    release.set()
    runs.join(30)
    steps.close()
    closed = incidents_in(home)[-1]
    assert (closed.id, closed.outcome.value) == (one.id, "recovered")


def test_a_run_that_an_error_has_ended_is_no_slow_step(home):
    """Nobody tells of the end of its last step, and its thread is elsewhere."""
    steps = SlowSteps(target="Qwen", pace=Quick())
    steps.begun(1)
    threading.Event().wait(0.1)
    steps.look()
    steps.look()
    assert incidents_in(home) == []


def test_what_cannot_be_written_down_ends_nothing(tmp_path, monkeypatch):
    """A journal that fails is counted."""
    monkeypatch.setattr("rayguard.actors.life.incidents.record", lambda _: 1 / 0)
    incident = told.opened(Kind.UNKNOWN, Scope.JOB, "x", signature="training.x", target="t")
    told.still_open(incident)
    told.ended(incident, told.Outcome.FAILED, remedy="none")
