"""A trainer's state is found by itself: the next life's steps are the same, to the bit."""

from __future__ import annotations

import dataclasses
import enum
import logging
import pathlib
import random
from collections import deque

import pytest

import rayguard
from rayguard.actors.mark import StateRule, mark_of
from rayguard.errors import ConfigError, StateLostError
from rayguard.process.state_bytes import from_bytes, to_parts
from rayguard.trainers.finite_steps import FiniteSteps, StepVerdict
from rayguard.trainers.found_state import found_state, restore_state

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")


class Trainer(rayguard.TrainerMixin):
    """All that a step may depend on."""

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)
        self.noise = torch.Generator().manual_seed(seed)
        self.shuffle = numpy.random.default_rng(seed)
        self.choose = random.Random(seed)
        self.scale = torch.ones(3, requires_grad=True)
        self.average, self.losses, self.step = 0.0, deque(maxlen=5), 0

    def train(self, *, accumulate=1):
        rows = torch.randn(8, 4, generator=self.noise) + float(self.shuffle.standard_normal())
        loss = (
            (self.model(rows) * self.scale.sum() * (1 + random.random() + numpy.random.random()))
            .square()
            .mean()
        )
        loss = loss + self.choose.random()
        loss.backward()
        self.step += 1
        if self.step % accumulate == 0:
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.model.train(self.step % 3 != 0)
        self.average = 0.9 * self.average + loss.item()
        self.losses.append(loss.item())
        return loss.item(), self.average, list(self.losses)


def over_a_death(state):
    """As bytes, through memory that is another's."""
    return from_bytes(b"".join(bytes(part) for part in to_parts(state)))


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("at", range(1, 8))
def test_the_next_life_makes_the_same_steps(at, accumulate):
    """Weights, moments, rates, buffers, modes, gradients that are not yet used, and six kinds of random numbers."""
    whole = Trainer()
    expected = [whole.train(accumulate=accumulate) for _ in range(12)]
    before = Trainer()
    found = [before.train(accumulate=accumulate) for _ in range(at)]
    state = over_a_death(before.state_dict())
    after = Trainer(seed=99)
    after.load_state_dict(state)
    found += [after.train(accumulate=accumulate) for _ in range(12 - at)]
    assert found == expected
    for mine, its in zip(after.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_a_tensor_stays_the_one_that_others_hold():
    """An optimizer has it in its groups."""
    first, second = Trainer(), Trainer()
    second.optimizer.add_param_group({"params": [second.scale]})
    with torch.no_grad():
        first.scale += 1
    first.optimizer.add_param_group({"params": [first.scale]})
    second.load_state_dict(over_a_death(first.state_dict()))
    assert second.optimizer.param_groups[-1]["params"][0] is second.scale
    assert second.scale.tolist() == [2.0, 2.0, 2.0]
    assert second.scale.requires_grad


def test_a_class_that_trains_is_guarded_and_restorable():
    """Without a word more."""
    assert mark_of(Trainer).state is StateRule.RESTORABLE
    assert mark_of(Trainer).role.value == "trainer"

    @rayguard.guard(policy=rayguard.GuardPolicy(call_retries=7))
    class Said(Trainer):
        pass

    assert mark_of(Said).policy.call_retries == 7
    assert mark_of(Said).state is StateRule.RESTORABLE


def test_gradients_may_be_left_out():
    """They cost a third more."""

    class Lean(Trainer):
        state_gradients = False

    lean = Lean()
    lean.train(accumulate=9)
    assert "gradients" not in lean.state_dict()["parts"]["model"]
    assert Trainer().state_dict()["parts"]["model"]["gradients"] == {}


def test_an_iterator_is_refused_and_what_is_made_anew_is_named_once(caplog):
    """Its position would be lost without a word."""

    class Config:
        depth = 3

    class Reads(rayguard.TrainerMixin):
        def __init__(self):
            self.rows, self.step = iter([1, 2, 3]), 0

    with pytest.raises(
        ConfigError, match=r"Reads.rows is an iterator \(list_iterator\).*state_excludes = \('rows',\)"
    ):
        Reads().state_dict()

    class Says(Reads):
        state_excludes = ("rows",)

        def __init__(self):
            super().__init__()
            self.config, self.print, self.log = Config(), print, open("/dev/null")  # noqa: SIM115, PTH123

    with caplog.at_level(logging.WARNING, "rayguard"):
        says = Says()
        assert set(says.state_dict()["values"]) == {"step"}
        says.state_dict()
        says.log.close()
    (line,) = caplog.records
    assert "of Says, step would be kept over a death; config is made anew" in line.getMessage()


def test_data_is_no_state():
    """A million values in an attribute, at each call."""
    owner = type("Owner", (), {})()
    owner.rows = list(range(200_000))
    with pytest.raises(ConfigError, match="rows holds more than 100,000 values"):
        found_state(owner)
    assert found_state(owner, without=("rows",))["values"] == {}


def test_what_init_does_not_make_is_told():
    """A part that is made later has nowhere to go."""
    state = Trainer().state_dict()
    bare = type("Bare", (), {})()
    with pytest.raises(StateLostError, match="Bare has no model after its __init__"):
        restore_state(bare, state)
    state["parts"] = {}
    with pytest.raises(StateLostError, match="Bare has no noise after its __init__"):
        restore_state(bare, state)


def test_a_name_where_a_tuple_of_names_belongs_is_told():
    """A text is a tuple of letters."""
    with pytest.raises(ConfigError, match=r"must be a tuple of names: \('rows',\)"):
        type("Wrong", (rayguard.TrainerMixin,), {"state_excludes": "rows"})


def test_steps_that_are_not_finite_are_left_out_and_then_gone_back_for(caplog):
    """To a state of more than 20 good steps before, with other random numbers."""
    trainer = Trainer()
    weights = []
    for _ in range(45):
        loss = trainer.train()[0]
        assert trainer.step_is_finite(loss, torch.tensor(1.0))
        weights.append(trainer.model[0].weight.detach().clone())
    drawn = random.getstate()
    assert [trainer.step_is_finite(value, 1.0) for value in (float("nan"), float("inf"))] == [False, False]
    assert torch.equal(trainer.model[0].weight, weights[-1])
    assert not trainer.step_is_finite(1.0, torch.tensor(float("nan")))
    assert torch.equal(trainer.model[0].weight, weights[20]), "the state before the last good one"
    assert trainer.step == 21
    assert random.getstate() == drawn
    counted = trainer.finite_steps
    assert (counted.taken, counted.skipped, counted.rewound) == (45, 3, 1)
    assert "3 steps of Trainer in a row are not finite (1, nan): its state goes back" in caplog.text
    assert trainer.train()


def test_without_a_state_to_go_back_to_it_is_said(caplog):
    """From the first step on nothing was finite; or nobody wants to go back."""
    trainer = Trainer()
    assert not any(trainer.step_is_finite(float("nan")) for _ in range(3))
    assert "there is no state to go back to" in caplog.text

    class Stays(Trainer):
        rewind_after = None

    stays = Stays()
    assert not any(stays.step_is_finite(float("nan")) for _ in range(9))
    assert stays.finite_steps.skipped == 9
    assert "_rayguard_good" not in vars(stays)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "3"])
def test_a_count_that_means_nothing_is_refused(wrong):
    """A clear error."""
    with pytest.raises(ConfigError, match="rewind_after must be"):
        FiniteSteps(wrong)


def test_verdicts_in_a_row():
    """A good step in between begins the count anew."""
    steps = FiniteSteps(2)
    nan = float("nan")
    found = [steps.judge(value) for value in (1.0, nan, 1.0, nan, nan, nan, nan)]
    assert found == [StepVerdict(v) for v in ("take", "skip", "take", "skip", "rewind", "skip", "rewind")]


# -- what a trainer may hold, and how


def linear(out=1):
    return torch.nn.Linear(4, out)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.1)


def learned(loss, *optimizers):
    loss.backward()
    for one in optimizers:
        one.step()
        one.zero_grad()
    return loss.item()


class Holds(rayguard.TrainerMixin):
    """``build`` makes what it holds, ``learn`` is a step."""

    def __init__(self):
        torch.manual_seed(0)
        self.build()

    def train(self):
        return self.learn(torch.randn(8, 4))


class ListOfParameters(Holds):
    """Of those gradients are clipped; a copy of them would have none."""

    def build(self):
        self.model = linear()
        self.mine = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = adam(self.mine)

    def learn(self, x):
        loss = self.model(x).square().sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.mine, 0.1)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


class TensorsInContainers(Holds):
    """An optimizer steps those that ``__init__`` made. Their gradients are used at each second call."""

    def build(self):
        self.rows = {
            "weight": torch.randn(4, 1, requires_grad=True),
            "more": [torch.zeros(1, requires_grad=True)],
        }
        self.total = torch.zeros(1)
        self.same = (self.total, self.total)
        self.optimizer, self.step = adam([self.rows["weight"], *self.rows["more"]]), 0

    def learn(self, x):
        self.loss = (x @ self.rows["weight"] + self.rows["more"][0]).square().sum()  # with its graph
        self.loss.backward()
        self.step += 1
        if self.step % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.total += 1
        return self.loss.item(), self.same[0].item(), self.same[1].item()


class FirstTheSame(Holds):
    """What named the model's tensors as it was made, and holds copies of them later."""

    def build(self):
        self.model = linear()
        self.best, self.top, self.now = [*self.model.parameters()], self.model.weight, self.model.weight.data
        self.optimizer, self.step = adam(self.model.parameters()), 0

    def learn(self, x):
        self.step += 1
        if self.step == 2:
            self.best = [one.detach().clone() for one in self.best]
            self.top = self.top.detach().clone()
        loss = learned(self.model(x).square().sum(), self.optimizer)
        return loss, *(one.sum().item() for one in (self.best[0], self.top, self.now))


class PartsInContainers(Holds):
    """Two models, their optimizers by name, and generators."""

    def build(self):
        self.models = [linear(), (linear(), linear())]
        self.optimizers = {
            "first": adam(self.models[0].parameters()),
            "others": adam([*self.models[1][0].parameters(), *self.models[1][1].parameters()]),
        }
        self.random = [random.Random(1), {"noise": torch.Generator().manual_seed(1)}]

    def learn(self, x):
        x = x + self.random[0].random() + torch.rand(1, generator=self.random[1]["noise"])
        first, second, third = (one(x).square().sum() for one in (self.models[0], *self.models[1]))
        return learned(first + second * third, *self.optimizers.values())


class IsAModule(rayguard.TrainerMixin, torch.nn.Module):
    """What torch keeps of it is in no attribute that could be kept by itself."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale = linear(), torch.nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1))
        self.optimizer, self.step = adam(self.parameters()), 0

    def train(self):
        self.step += 1
        self.seen += 1
        return learned(
            (self.layer(torch.randn(8, 4)) * self.scale).square().sum(), self.optimizer
        ), self.seen.item()


class InSlots(rayguard.TrainerMixin):
    __slots__ = ("model", "optimizer", "step")

    def __init__(self):
        torch.manual_seed(0)
        self.model, self.step = linear(), 0
        self.optimizer = adam(self.model.parameters())

    def train(self):
        self.step += 1
        return learned(self.model(torch.randn(8, 4)).square().sum(), self.optimizer), self.step


class Phase(enum.Enum):
    WARM, HOT = 1, 2


@dataclasses.dataclass
class Progress:
    phase: Phase = Phase.WARM
    best: dict = dataclasses.field(default_factory=dict)


class Values(Holds):
    """Of kinds that are plain, too; the dataclass is held twice."""

    def build(self):
        self.progress, self.place = Progress(), pathlib.PurePath("a")
        self.also, self.dtype, self.size = self.progress, torch.float32, torch.Size([1])

    def learn(self, x):
        self.progress.phase = Phase.HOT
        self.progress.best["sum"] = x.sum()
        self.place, self.dtype, self.size = self.place / "b", torch.float16, torch.Size([*self.size, 2])
        return self.also.phase is Phase.HOT, self.also.best["sum"].item(), self.place, self.dtype, self.size


class Thawed(Holds):
    """Frozen at first."""

    def build(self):
        self.model, self.step = torch.nn.Sequential(linear(4), linear()), 0
        self.model[0].requires_grad_(False)
        self.optimizer = adam(self.model.parameters())

    def learn(self, x):
        self.step += 1
        self.model[0].requires_grad_(self.step > 1)
        return learned(self.model(x).square().sum(), self.optimizer)


class StandsFor:
    """Hands every name on to what it wraps."""

    def __init__(self, wrapped):
        self.wrapped = wrapped

    def __getattr__(self, name):
        return getattr(vars(self)["wrapped"], name)


class Wrapped(Holds):
    """Its class has no ``state_dict``, and it has."""

    def build(self):
        self.model, self.step = StandsFor(linear()), 0
        self.optimizer = StandsFor(adam(self.model.parameters()))

    def learn(self, x):
        self.step += 1
        return learned(self.model.forward(x).square().sum(), self.optimizer)


class Connected(Holds):
    """What answers to any name, or to none; what takes no numbers; what holds itself."""

    class Anything:
        """As a client of a server has it."""

        def __getattr__(self, name):
            return lambda *_, **__: self

    class Nothing:
        """As one has it that is made when it is first used."""

        def __getattr__(self, name):
            raise RuntimeError("not connected")

    def build(self):
        self.proxy, self.client, self.me, self.ring = self.Anything(), self.Nothing(), self, []
        self.ring.append(self.ring)
        self.mask, self.step = torch.ones(1).expand(4), 0
        with torch.inference_mode():
            self.base = torch.zeros(2)

    def learn(self, x):
        self.step += 1
        return self.step, self.mask.tolist(), self.base.tolist(), x.sum().item()


HELD = [
    *(ListOfParameters, TensorsInContainers, FirstTheSame, PartsInContainers, IsAModule, InSlots, Values),
    *(Thawed, Wrapped, Connected),
]


@pytest.mark.parametrize("cls", HELD, ids=lambda cls: cls.__name__)
def test_however_it_is_held_it_goes_on(cls):
    """Each was lost or doubled without a word, or stopped the rest from being kept."""
    before = cls()
    for _ in range(3):
        before.train()
    state = over_a_death(before.state_dict())
    expected = [before.train() for _ in range(4)]
    after = cls()
    after.load_state_dict(state)
    assert [after.train() for _ in range(4)] == expected


def test_a_list_of_parameters_is_the_models_after_a_rewind_too():
    """Copies of them would never change again."""
    trainer = ListOfParameters()
    for _ in range(45):
        assert trainer.step_is_finite(trainer.train())
    for _ in range(3):
        assert not trainer.step_is_finite(float("inf"))
    assert trainer.finite_steps.rewound == 1
    assert all(one is other for one, other in zip(trainer.mine, trainer.model.parameters(), strict=True))


def test_a_loss_with_its_graph_is_no_hindrance():
    """As an attribute it cannot be copied by Python's own means."""
    trainer = TensorsInContainers()
    trainer.train()
    assert trainer.step_is_finite(trainer.loss)


def test_parts_that_init_makes_fewer_of_are_told():
    """The third model has nowhere to go."""
    trainer = PartsInContainers()
    trainer.models.append(linear())
    with pytest.raises(StateLostError, match="models holds 2 parts after its __init__, and in its state 3"):
        PartsInContainers().load_state_dict(trainer.state_dict())


def test_what_comes_or_grows_later_is_told_and_stops_nothing(caplog):
    """A run must not end in its thousandth step for the length of a list."""
    trainer = Thawed()
    trainer.rows = []
    trainer.state_dict()
    trainer.late, trainer.rows = adam(trainer.model.parameters()), [0] * 100_001
    for _ in range(2):
        assert len(trainer.state_dict()["values"]["rows"][1]) == 100_001
    grown, late = (one.getMessage() for one in caplog.records)
    assert "Thawed.late was not made by __init__" in late
    assert "Thawed.rows has grown to more than 100,000 values" in grown


def test_a_module_of_torch_before_the_mixin_is_refused():
    """Its state would be torch's: the weights alone."""
    with pytest.raises(ConfigError, match=r"name rayguard\.TrainerMixin before torch's class"):
        type("Wrong", (torch.nn.Module, rayguard.TrainerMixin), {})
