"""Interrupted requests of every kind go on to the very tokens of an uninterrupted run: real vLLM on the CPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rayguard import GuardPolicy, RestartBudget
from rayguard.engine import continuation
from tests.engine.kinds import LENGTH, Roomy, generate, kinds_of, model
from tests.engine.real import ENVIRONMENT, incidents

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def owner(tmp_path_factory, prefork):
    """One engine for all tests: each leaves it serving."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("exact")
    for name, value in {**ENVIRONMENT, "RAYGUARD_HOME": str(folder / "home")}.items():
        patch.setenv(name, value)
    owner = Roomy(model(folder / "model"), "LLM")
    often = RestartBudget(max_restarts=50, within_s=3600.0)  # the faults are ours, not the engine's
    owner.start_engine(policy=GuardPolicy(engine_budget=often))
    yield owner
    owner.stop_engine()
    patch.undo()


@pytest.fixture(scope="module")
def kinds(owner):
    """Sampling parameters of each kind by name."""
    return kinds_of(owner)


@pytest.fixture(scope="module")
def undisturbed(owner, kinds):
    """What each kind answers when nothing happens; said twice, to know that it can be compared."""
    first = generate(owner, kinds)
    assert generate(owner, kinds) == first
    assert first["repetition detected"][0][0][2] == "repetition"
    assert len(first["repetition detected"][0][0][0]) == 90
    assert 80 <= len(first["min tokens"][0][0][0]) < LENGTH
    assert first["stop string"][0][0][2] == "stop"
    return first


@pytest.mark.parametrize("part", [0.05, 0.3, 0.55])
def test_every_kind_goes_on_exactly(owner, kinds, undisturbed, part):
    """SIGKILL of the core early, midway and late: tokens, text, reasons, logprobs and versions are the same."""
    total = sum(len(sample[0]) for samples, _ in undisturbed.values() for sample in samples)
    with owner.struck("core", after_tokens=int(total * part)):
        answers = generate(owner, kinds)
    others = [name for name in kinds if answers[name] != undisturbed[name]]
    assert others == []
    incident = incidents()[-1]
    assert incident.tokens_lost == 0
    assert incident.tokens_saved >= int(total * part) - len(kinds)


@pytest.mark.parametrize("cut", [1, 2, 12, 13, 40, 44, 45, 69, 88])
def test_every_kind_goes_on_exactly_from_any_token(owner, kinds, undisturbed, cut):
    """Asked for by hand, twice: the second time the prefix cache holds more than the prompt."""
    wanted = {
        name: undisturbed[name][0][0]
        for name, params in kinds.items()
        if params.n == 1 and not params.stop and len(undisturbed[name][0][0][0]) > cut
    }
    everything = continuation.Exact(outputs=True, hidden=True)

    def after(name):
        request = SimpleNamespace(prompt_token_ids=[], sampling_params=kinds[name])
        return continuation.continued(request, list(wanted[name][0][:cut]), everything).sampling_params

    for _ in range(2):
        answers = generate(owner, {name: after(name) for name in wanted})
        rests = {name: samples[0] for name, (samples, _) in answers.items()}
        others = [
            name
            for name, (tokens, _, finish, stop, logprobs, _) in wanted.items()
            if (rests[name][0], *rests[name][2:5]) != (tokens[cut:], finish, stop, logprobs[cut:])
        ]
        assert others == []
