"""The tiny model and its trainer, on real torch: they agree with themselves, and they learn."""

import os
from pathlib import Path

import pytest
import ray
import safetensors.torch
import torch

from examples.grpo.model import VOCABULARY, build
from examples.grpo.samples import NEW_TOKENS, PromptSource, Sample
from examples.grpo.trainer import Trainer


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return build(tmp_path_factory.mktemp("model"), seed=0)


@pytest.fixture(scope="module")
def model(model_dir):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)


@pytest.fixture(scope="module")
def trainer(model_dir):
    """A trainer actor on a Ray of its own."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}},
    )
    actor = Trainer.remote(str(model_dir))
    yield actor
    ray.shutdown()


def samples_of(model, requests, version="update-0"):
    """Sample with plain transformers: an engine that needs no vLLM."""
    torch.manual_seed(hash(requests[0].prompt) % 2**31)  # other dice for each step
    tokens, logprobs, cache = [], [], None
    inputs = torch.tensor([request.prompt for request in requests])
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            out = model(inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, scores = out.past_key_values, out.logits[:, -1].log_softmax(-1)
            inputs = torch.multinomial(scores.exp(), 1)
            tokens.append(inputs)
            logprobs.append(scores.gather(1, inputs))
    ids = torch.cat(tokens, 1)
    logprobs = torch.cat(logprobs, 1)
    return [
        Sample(
            id=request.id,
            prompt=request.prompt,
            tokens=tuple(ids[n].tolist()),
            logprobs=tuple(logprobs[n].tolist()),
            weight_version=version,
        )
        for n, request in enumerate(requests)
    ]


@pytest.fixture
def requests(model_dir):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    source = PromptSource(encode=lambda text: tokenizer.encode(text).ids)
    return lambda step: [request for group in source.step(step) for request in group]


def test_the_same_seed_builds_the_same_model(model_dir, tmp_path):
    """A run can be repeated."""
    again = build(tmp_path, seed=0)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (again / name).read_bytes() == (model_dir / name).read_bytes()


def test_the_tokenizer_speaks_every_byte_and_gives_text_back(model_dir):
    """Byte-level: nothing is unknown to it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    text = "Ada has 3 apples, 日本 ß \x01"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert max(ids) < len(tokenizer) == VOCABULARY


@pytest.mark.ray
def test_the_trainer_scores_tokens_as_the_sampler_did(trainer, model, requests):
    """The oracle of the demo: the same weights give the same logprobs, to 1e-4."""
    samples = samples_of(model, requests(0))
    scored = torch.tensor(ray.get(trainer.logprobs.remote(samples), timeout=150))
    sampled = torch.tensor([sample.logprobs for sample in samples])
    assert (scored - sampled).abs().max() < 1e-4


@pytest.mark.ray
def test_other_weights_do_not_score_alike(trainer, model, requests):
    """The oracle can fail: one changed layer shows."""
    samples = samples_of(model, requests(1))
    wrong = [
        s.__class__(**{f: getattr(s, f) for f in s.__slots__} | {"tokens": s.tokens[::-1]}) for s in samples
    ]
    scored = torch.tensor(ray.get(trainer.logprobs.remote(wrong), timeout=150))
    assert (scored - torch.tensor([s.logprobs for s in samples])).abs().max() > 1e-2


@pytest.mark.ray
def test_training_raises_the_reward_and_hands_out_its_weights(trainer, model, requests):
    """Thirty steps from chance to mostly even; each update is a new version."""
    rewards = []
    for step in range(30):
        metrics = ray.get(trainer.step.remote(samples_of(model, requests(step))), timeout=150)
        weights = ray.get(trainer.weights.remote(), timeout=150)
        model.load_state_dict(safetensors.torch.load(weights.payload))
        assert weights.version == f"update-{step + 1}"
        assert metrics.logp_diff < 1e-4
        rewards.append(metrics.reward)
    assert 0.4 < rewards[0] < 0.6
    assert rewards[-1] > 0.75, rewards
