"""Draws and grammars are brought to where they were: vLLM's own classes, no engine."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from rayguard.engine.continuation import PLAIN, Exact
from rayguard.engine.protocol import EngineProcess
from rayguard.engine.vllm.exact.claims import claim, exactness
from rayguard.engine.vllm.patch import says, takes, wrap
from rayguard.faults.fault import Role
from rayguard.process.identity import ProcessId
from tests.open_files import open_files

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 500, 2_000])
def test_a_generator_is_brought_to_its_next_draw(count):
    """As many draws as vLLM's CPU sampler makes for so many tokens."""
    import torch
    from vllm.platforms import current_platform
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    from rayguard.engine.vllm.exact.worker import draw

    current_platform.import_kernels()
    sampler = TopKTopPSampler()

    def sampled(generator, steps):
        flat = torch.zeros(2, 99)
        return [sampler.forward(flat.clone(), {1: generator}, None, None)[0][1].item() for _ in range(steps)]

    whole, rest = (torch.Generator().manual_seed(7) for _ in range(2))
    expected = sampled(whole, count + 20)[count:]
    draw(rest, count, 99)
    assert sampled(rest, 20) == expected
    assert rest.get_state().equal(whole.get_state())


def test_a_generator_that_cannot_be_advanced_gives_another_sample_and_no_error(monkeypatch):
    """A worker that raises takes its engine down."""
    import torch

    from rayguard.engine.vllm.exact import worker

    def broken(*_args, **_kwargs):
        raise RuntimeError("no such kernel")

    generator = torch.Generator().manual_seed(7)
    fresh = torch.Generator().manual_seed(7).get_state()
    monkeypatch.setattr(worker.torch, "randint", broken)
    worker.draw(generator, 5, 99)
    assert not generator.get_state().equal(fresh)


class Grammar:
    """Accepts anything but a zero, and remembers."""

    def __init__(self):
        self.accepted = []

    def accept_tokens(self, _request_id, tokens):
        self.accepted += tokens
        return 0 not in tokens


class Reasoner:
    """Reasoning ends with a 5."""

    def __init__(self, tokenizer=None):
        self.tokenizer = tokenizer

    def is_reasoning_end(self, prompt):
        return 5 in prompt

    def is_reasoning_end_streaming(self, _tokens, delta):
        return 5 in delta


def constrained(prompt, tokens, reasoner):
    """Advance a grammar over tokens through vLLM's own manager; return all three that took part."""
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.structured_output import StructuredOutputManager
    from vllm.v1.structured_output.request import StructuredOutputRequest

    from rayguard.engine.vllm.exact.core import accepted

    manager = StructuredOutputManager.__new__(StructuredOutputManager)
    manager.enable_in_reasoning, manager.reasoner_cls, manager.tokenizer = False, reasoner, None
    structured = StructuredOutputRequest(params=StructuredOutputsParams(json_object=True))
    request = SimpleNamespace(
        request_id="r",
        prompt_token_ids=prompt,
        structured_output_request=structured,
        use_structured_output=True,
    )
    grammar = Grammar()
    return accepted(manager, request, grammar, tokens), grammar, structured


@pytest.mark.parametrize(
    ("prompt", "reasoner", "constrains", "ended"),
    [
        ([1], None, [2, 3, 5, 7, 8], True),
        ([1], Reasoner, [7, 8], True),
        ([1, 5], Reasoner, [2, 3, 5, 7, 8], True),
    ],
)
def test_a_grammar_sees_what_it_saw(prompt, reasoner, constrains, ended):
    """All tokens, or those after the end of reasoning."""
    taken, grammar, structured = constrained(prompt, [2, 3, 5, 7, 8], reasoner)
    assert taken
    assert grammar.accepted == constrains
    assert structured.reasoning_ended is ended
    assert structured._grammar is None, "the request gets its grammar from its future, not from here"


def test_a_grammar_is_not_begun_while_reasoning_goes_on():
    """A cut in the middle of the thoughts."""
    taken, grammar, structured = constrained([1], [2, 3, 7], Reasoner)
    assert taken
    assert grammar.accepted == []
    assert structured.reasoning_ended is False


def test_a_grammar_that_refuses_ends_that_request():
    """As vLLM does: its future carries an error, and the scheduler ends the one request with it."""
    taken, _, _ = constrained([1], [2, 0, 3], None)
    assert not taken


class Known:
    """Something to wrap."""

    def plain(self, a, b=2):
        return (a, b)

    @classmethod
    def made(cls, a):
        return (cls, a)


def test_a_method_is_wrapped_once_and_keeps_its_form():
    """A second install, or a fork after the first, changes nothing."""

    class Child(Known):
        pass

    for _ in range(2):
        wrap(Child, "plain", lambda original, *args, **kwargs: ("around", original(*args, **kwargs)))
        wrap(Child, "made", lambda original, *args: ("around", original(*args)))
    assert Child().plain(1, b=3) == ("around", (1, 3))
    assert Child.made(1) == ("around", (Child, 1))
    assert takes(Child.plain, "self", "a", "b")
    assert takes(Child.made, "a")
    assert says(Child.plain, "return   (a, b)")
    assert not says(Child.plain, "return (b, a)")


def test_an_unknown_vllm_is_left_alone(monkeypatch):
    """A method with another signature: nothing is installed, nothing is claimed."""
    from vllm.v1.worker.gpu_input_batch import InputBatch

    from rayguard.engine.vllm.exact import installer

    claimed = []
    monkeypatch.setattr(installer, "claim", claimed.append)
    monkeypatch.setattr(InputBatch, "add_request", lambda self, request, more: None)
    assert installer.install() is False
    assert claimed == []
    assert not hasattr(InputBatch.add_request, "by_rayguard")


def config(**more):
    values = {
        "speculative_config": None,
        "use_v2_model_runner": False,
        "parallel_config": SimpleNamespace(world_size=1),
        "model_config": SimpleNamespace(use_fp64_gumbel=False),
    }
    return SimpleNamespace(**{**values, **more})


@pytest.fixture
def process():
    """Start a process that claims some abilities; ended with the test."""
    started = []

    def start(role, *claims):
        code = (
            "import sys; from rayguard.engine.vllm.exact.claims import claim\n"
            "[claim(what) for what in sys.argv[1:]]; print(flush=True); sys.stdin.read()"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", code, *claims], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(child)
        child.stdout.readline()
        return EngineProcess(role, ProcessId.of(child.pid))

    yield start
    for child in started:
        child.communicate(timeout=30)


def test_an_engine_is_as_exact_as_its_least_process(process):
    """The core and as many workers as there are must show it; a core alone is enough for the second runner."""
    core, worker = process(Role.ENGINE_CORE, "core"), process(Role.ENGINE_WORKER, "outputs", "hidden")
    half, none = process(Role.ENGINE_WORKER, "outputs"), process(Role.ENGINE_WORKER)
    alone = process(Role.ENGINE_CORE, "core", "outputs", "hidden")
    everything, outputs = Exact(outputs=True, hidden=True), Exact(outputs=True)
    two = SimpleNamespace(world_size=2)
    assert exactness([core, worker, none], config()) == everything
    assert exactness([alone], config()) == everything
    assert exactness([core, half], config()) == outputs
    assert exactness([core, worker, half], config(parallel_config=two)) == outputs
    assert exactness([core, worker], config(parallel_config=two)) == PLAIN
    assert exactness([core, none], config()) == PLAIN
    assert exactness([none, worker], config()) == PLAIN
    assert exactness([], config()) == PLAIN
    assert exactness([core, worker], config(speculative_config=object())) == outputs
    assert exactness([core, worker], config(model_config=SimpleNamespace(use_fp64_gumbel=True))) == outputs
    assert exactness([core], config(use_v2_model_runner=True)) == everything
    assert exactness([core], config(use_v2_model_runner=True, speculative_config=object())) == outputs


def test_a_claim_is_made_once_and_by_each_process_for_itself():
    """No descriptor leaks at a second install."""
    before = open_files()
    claim("something")
    claim("something")
    assert (open_files() - before).total() == 1
