"""Requests of every kind of sampling, for tests that compare an interrupted run with an undisturbed one."""

from __future__ import annotations

from examples.grpo.text import sentences
from rayguard.testing import tiny_qwen
from tests.engine.real import Owner

LENGTH = 120
PROMPT = "Ada has 12 apples and gets 30 more: "
RARE = "xqzjkvw"  # letters that no token joins


def model(folder):
    """Write a model that does not repeat itself, with a tokenizer, to ``folder``; return its path."""
    texts = sentences(0, 2_000)
    return str(tiny_qwen.build(folder, texts=texts, tied=True, spread=0.2, context=256))


class Roomy(Owner):
    """Prefills whole prompts: in parts, a seeded request kills vLLM's CPU core, with or without rayguard."""

    def build_engine(self, settings):
        from vllm import LLM

        return LLM(
            **settings.as_kwargs(
                model=self.model,
                dtype="float32",
                enforce_eager=True,
                max_model_len=256,
                max_num_seqs=64,
                max_num_batched_tokens=16_384,
                block_size=32,
                kv_cache_memory_bytes=64 << 20,
                logits_processors=["tests.engine.stateful_processor:NeverTwice"],
            )
        )


def kinds_of(owner):
    """Sampling parameters of each kind by name, those with a stop string made from a look at the answer."""
    from vllm import SamplingParams
    from vllm.sampling_params import RepetitionDetectionParams, StructuredOutputsParams

    tokenizer = owner.with_engine(lambda engine: engine.get_tokenizer())
    rare = [tokenizer.encode(letter)[0] for letter in RARE]
    pairs = [a + b for a in RARE for b in RARE if (ord(a) + ord(b)) % 3]
    seeded = {"temperature": 1.0, "seed": 11}
    greedy = {"temperature": 0.0}

    def structured(**how):
        return {"structured_outputs": StructuredOutputsParams(**how)}

    schema = {
        "type": "array",
        "items": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        "minItems": 20,
    }
    of = {
        "greedy": {**greedy, "logprobs": 2, "prompt_logprobs": 1},
        "seeded": {**seeded, "logprobs": 2},
        "seeded, cool": {**seeded, "temperature": 0.7},
        "seeded, top-p": {**seeded, "top_p": 0.8},
        "seeded, top-k": {**seeded, "top_k": 20},
        "seeded, min-p": {**seeded, "min_p": 0.02},
        "seeded, all": {**seeded, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "logprobs": 0},
        "several": {**seeded, "n": 3},
        "several, the same": {**seeded, "n": 3, "top_k": 1},
        "repetition penalty": {**greedy, "repetition_penalty": 1.3},
        "presence penalty": {**greedy, "presence_penalty": 1.5, "logprobs": 1},
        "frequency penalty": {**greedy, "frequency_penalty": 0.7},
        "all penalties, seeded": {
            **seeded,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
            "repetition_penalty": 1.1,
        },
        "bad words": {**seeded, "allowed_token_ids": rare, "bad_words": pairs},
        "logit bias": {**seeded, "logit_bias": {7: 5.0, 9: 4.0}},
        "min tokens": {**seeded, "min_tokens": 80, "stop_token_ids": list(range(0, 512, 3))},
        "repetition detected": {
            **greedy,
            "allowed_token_ids": rare[:1],
            "repetition_detection": RepetitionDetectionParams(max_pattern_size=1, min_count=90),
        },
        "regex": {**seeded, **structured(regex=r"(ab|cd){20}[0-9]{200}")},
        "regex, greedy": {**greedy, **structured(regex=r"([a-c]{3} [0-9]{5} ){40}")},
        "json": {**seeded, **structured(json=schema)},
        "grammar": {**seeded, **structured(grammar='root ::= ("x" [0-9] "y" [a-f]){60}')},
        "processor with a state": {**seeded, "extra_args": {"never_twice": True}},
    }
    made = {
        name: SamplingParams(**{"max_tokens": LENGTH, "ignore_eos": True, **how}) for name, how in of.items()
    }
    text = generate(owner, {"seeded": made["seeded"]})["seeded"][0][0][1]
    where = int(len(text) * 0.6)
    made["stop string"] = SamplingParams(
        max_tokens=LENGTH, ignore_eos=True, stop=[text[where : where + 9]], **seeded
    )
    return made


def generate(owner, kinds):
    """Return what a caller sees of each kind, all of them in one batch."""
    outputs = owner.with_engine(
        lambda e: e.generate([PROMPT] * len(kinds), list(kinds.values()), use_tqdm=False)
    )
    return {name: seen(output) for name, output in zip(kinds, outputs, strict=True)}


def seen(output):
    def plain(positions):
        return [{t: lp.logprob for t, lp in (p or {}).items()} for p in positions or ()]

    samples = [
        (
            tuple(c.token_ids),
            c.text,
            c.finish_reason,
            c.stop_reason,
            plain(c.logprobs),
            [tuple(vars(span).values()) for span in c.weight_versions or ()],
        )
        for c in sorted(output.outputs, key=lambda c: c.index)
    ]
    return samples, plain(output.prompt_logprobs)
