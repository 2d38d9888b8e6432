"""Pushes that do not fit or fail to load: refused before an engine is touched, and what served serves on."""

from __future__ import annotations

import itertools

import pytest
import torch

from rayguard import GuardPolicy, RestartBudget, Weights
from rayguard.engine.context import Surroundings
from rayguard.engine.supervision.slot import engine_slot
from rayguard.engine.weights import history
from rayguard.engine.weights.layout import misfit
from rayguard.engine.weights.proof import Proof
from rayguard.errors import WeightsError
from rayguard.recovery.incident import Outcome
from rayguard.testing.fakes import FakeEngine, FakeLLM

POLICY = GuardPolicy(
    standby=None,
    engine_budget=RestartBudget(max_restarts=4, within_s=600.0),
    build_deadline_s=5.0,
    weights_deadline_s=5.0,
)
LAYER = {f"model.layers.{n}.{part}.weight": ("BF16", (4, 4)) for n in range(2) for part in ("q", "k")}
KNOWN = {"model.embed.weight": ("BF16", (8, 4)), "model.norm.weight": ("BF16", (4,)), **LAYER}
DRAFT = {"mtp.fc.weight": ("BF16", (4,)), "mtp.layers.0.q.weight": ("BF16", (4, 4))}


def without(name):
    return {key: value for key, value in KNOWN.items() if key != name}


MISFITS = {
    "shape": (
        {**KNOWN, "model.norm.weight": ("BF16", (5,))},
        "'model.norm.weight' is BF16[5] and not BF16[4]",
    ),
    "integers": ({**KNOWN, "model.norm.weight": ("I32", (4,))}, "'model.norm.weight' is I32[4]"),
    "eight bits": ({**KNOWN, "model.norm.weight": ("F8_E4M3", (4,))}, "'model.norm.weight' is F8_E4M3[4]"),
    "foreign": ({**KNOWN, "model.layers.0.x.weight": ("BF16", (4,))}, "'model.layers.0.x.weight' is foreign"),
    "missing": (without("model.layers.1.k.weight"), "'model.layers.1.k.weight' is missing"),
    "missing alone": (without("model.norm.weight"), "'model.norm.weight' is missing"),
    "others": (
        {"model.w": ("BF16", (4,))},
        "is missing; tensor 'model.norm.weight' is missing (3 of 6 tensors)",
    ),
}


@pytest.mark.parametrize("how", MISFITS)
def test_a_tensor_that_differs_is_named(how):
    """The first few, and how many there are."""
    sent, told = MISFITS[how]
    assert told in misfit(sent, KNOWN)


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        (KNOWN, KNOWN),
        ({name: ("F32", shape) for name, (_, shape) in KNOWN.items()}, KNOWN),
        ({**KNOWN, "lm_head.weight": ("BF16", (8, 4))}, KNOWN),
        (KNOWN, {**KNOWN, "lm_head.weight": ("BF16", (8, 4))}),
        (KNOWN, {**KNOWN, **DRAFT}),
    ],
)
def test_what_an_engine_takes_fits(sent, known):
    """Other precision, a tied head, a draft head that a checkpoint has and a trainer does not send."""
    assert misfit(sent, known) == ""


def test_beside_a_checkpoint_only_what_both_have_is_compared():
    """A trainer may name its tensors otherwise."""
    assert misfit({"other.name": ("BF16", (1,))}, KNOWN, complete=False) == ""
    assert "model.norm" in misfit({"model.norm.weight": ("BF16", (9,))}, KNOWN, complete=False)


class Stage:
    """A slot with a source that offers ``self.offer``, and the engines that were built."""

    def __init__(self, folder, offer, on_push=None):
        self.built, self.told, self.offer = [], [], offer

        def recipe(settings):
            llm = FakeLLM(None, **settings.as_kwargs(max_num_seqs=16))
            if on_push is not None:
                llm.on_push = on_push
            self.built.append(llm)
            return llm

        around = Surroundings(target="Fake", home=lambda: folder, write=lambda i: self.told.append(i) or True)
        self.slot = engine_slot(recipe, policy=POLICY, surroundings=around, weights=lambda: self.offer)
        self.slot.start()

    @property
    def pushes(self):
        return self.slot.engine(1.0).pushes

    @property
    def serves(self):
        """With which weights."""
        return self.slot.engine(1.0).handle.weights if self.slot.ready is not None else None

    def die(self):
        self.slot.report(RuntimeError("it died"), self.slot.engine(1.0).life).result(30)


@pytest.fixture
def stage(tmp_path):
    made = []

    def make(offer, on_push=None):
        made.append(Stage(tmp_path, offer, on_push))
        return made[-1]

    yield make
    for one in made:
        one.slot.close(0.0)


def weights(version, **tensors):
    tensors = tensors or {"a": torch.full((2, 2), float(version)), "b": torch.full((2,), float(version))}
    return Weights.from_tensors(version, tensors)


def refusing(*versions):
    """Return what a worker says of these versions."""

    def on_push(version):
        if version in versions:
            raise WeightsError(f"weights {version!r} were not loaded by worker 0: no such layer")

    return on_push


UNFIT = {
    "shape": lambda: weights("2", a=torch.zeros(2, 3), b=torch.zeros(2)),
    "missing": lambda: weights("2", a=torch.zeros(2, 2)),
    "foreign": lambda: weights("2", a=torch.zeros(2, 2), b=torch.zeros(2), c=torch.zeros(2)),
    "integers": lambda: weights("2", a=torch.zeros(2, 2, dtype=torch.int32), b=torch.zeros(2)),
    "nan": lambda: weights("2", a=torch.full((2, 2), torch.nan), b=torch.zeros(2)),
    "empty": lambda: Weights("2", payload=b""),
    "no file": lambda: Weights("2", path="/nowhere/at/all"),
    "cut off": lambda: Weights("2", payload=weights("2").payload[:-2]),
}


@pytest.mark.parametrize("how", UNFIT)
def test_an_unfit_version_touches_no_engine_and_the_last_one_serves_on(stage, how):
    """Also where the engine dies while it is on offer; a fit one is taken."""
    one = stage(weights("1"))
    one.offer = UNFIT[how]()
    for _ in range(3):
        with pytest.raises(WeightsError):
            one.slot.bring_weights()
    assert (one.pushes, one.serves, len(one.built)) == (1, "1", 1)
    told = [i for i in one.told if i.signature == "rayguard.weights"]
    assert [(i.outcome, i.remedy) for i in told] == [(Outcome.ANSWERED, "keep_weights")]
    one.die()
    assert (one.serves, len(one.built), one.slot.status()["settings"]) == ("1", 2, [])
    one.offer = weights("3")
    assert one.slot.bring_weights() == "3"


def test_an_engine_that_was_taken_over_is_held_to_what_an_earlier_process_pushed():
    """Its workers say what that was: this process has pushed nothing yet."""
    known = Proof("1", "digest", layout=weights("1").names())
    later = history.PushHistory()
    assert later.goes_on(known) == Proof("1", "digest")
    assert not later.goes_on(known).layout  # which goes no further: a pool asks for proofs
    with pytest.raises(WeightsError, match=r"compared with weights '1'.*'b' is missing"):
        later.judge(UNFIT["missing"](), FakeEngine.__new__(FakeEngine))
    later.judge(weights("3"), FakeEngine.__new__(FakeEngine))


def test_a_version_that_fails_to_load_is_undone_and_refused_after_the_second_time(stage):
    """In the engine that has it half loaded: nobody restarts anything."""
    one = stage(weights("1"), refusing("2"))
    one.offer = weights("2")
    for _ in range(4):
        with pytest.raises(WeightsError, match="no such layer"):
            one.slot.bring_weights()
        assert (one.serves, one.slot.proof.version) == ("1", "1")
    assert (one.pushes, len(one.built)) == (3, 1), "twice tried, twice undone"
    one.die()
    assert (one.serves, len(one.built)) == ("1", 2)


def test_a_version_on_which_engines_die_is_refused_after_the_third(stage):
    """Two deaths may be chance."""

    def on_push(version):
        if version == "2":
            raise RuntimeError("it died")

    one = stage(weights("1"), on_push)
    one.offer = weights("2")
    for _ in range(2):
        with pytest.raises(WeightsError, match=r"refused.*it died"):
            one.slot.bring_weights()
    assert (one.serves, len(one.built)) == ("1", 4)


def test_the_very_first_version_that_is_unfit_is_told_to_whoever_asks(stage):
    """At the start nothing is there to serve on: no restarts, and a fit version mends it."""
    one = stage(weights("1"), refusing("1"))
    assert one.serves is None
    for _ in range(2):
        with pytest.raises(WeightsError, match="no such layer"):
            one.slot.catch_up()
    assert len(one.built) == 2
    one.offer = weights("2")
    assert one.slot.bring_weights() == "2"
    assert (one.serves, len(one.built)) == ("2", 2)


def test_a_first_push_that_fails_leaves_the_models_own_weights(stage):
    """They were current: an engine that was built anew serves with them."""
    one = stage(None, refusing("1"))
    assert one.serves == ""
    one.offer = weights("1")
    for _ in range(2):
        with pytest.raises(WeightsError, match=r"refused.*no such layer"):
            one.slot.bring_weights()
    assert (one.serves, len(one.built)) == ("", 3)


def test_kept_weights_are_used_only_as_they_were_pushed(stage, tmp_path):
    """A file that was saved over is not taken for what it held."""
    file, turn = tmp_path / "w.safetensors", itertools.count()

    def saved(version):
        file.write_bytes(weights(version).payload)
        return Weights(version, path=str(file))

    one = stage(saved("1"))
    file.write_bytes(f"being written {next(turn)}".encode())
    one.offer = Weights("2", path=str(file))
    with pytest.raises(WeightsError):
        one.slot.bring_weights()
    assert one.serves == "1"
    one.die()
    assert one.serves is None
    one.offer = saved("3")
    assert one.slot.bring_weights() == "3"


def test_the_models_own_weights_do_not_come_back_once_others_served(stage, monkeypatch):
    """Also where no version could be kept."""
    monkeypatch.setattr(history.NodeProbe, "left", lambda _: 100)
    one = stage(None)
    one.offer = weights("1")
    assert one.slot.bring_weights() == "1"
    one.offer = UNFIT["shape"]()
    one.die()
    assert one.serves is None


def test_no_version_is_kept_that_would_take_the_memory(stage, monkeypatch):
    """An engine that dies then has nothing to serve until a fit version is on offer."""
    monkeypatch.setattr(history.NodeProbe, "left", lambda _: 100)
    one = stage(weights("1"))
    one.offer = UNFIT["shape"]()
    one.die()
    assert one.serves is None
    with pytest.raises(WeightsError, match="do not fit"):
        one.slot.catch_up()
    assert len(one.built) == 2
