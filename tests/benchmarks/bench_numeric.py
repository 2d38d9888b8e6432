"""What looking at numbers costs, beside softmax and sampling of the same logits: ``python -m tests.benchmarks.bench_numeric``.

``guarded``: with ``NumericGuard`` on the host. ``as_on_a_device``: the same work as on a GPU, done by the CPU: what is
bad is neutralised without a look. ``engine``: with what a vLLM worker is asked for (``GuardPolicy.check_logits``);
``vllm_count``: with vLLM's own count; ``--vllm`` adds vLLM's own sampling. Each forward comes after a sampling, so that
what a step finds cold is cold here, in another order each round. Seconds are those of the one thread, and the fastest
count: others on the machine only make times longer. Bar: 0.015 of softmax and sampling together.
"""

from __future__ import annotations

import argparse
import json
import random
import time


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=300)
    options.add_argument("--rows", type=int, default=8)
    options.add_argument("--vocabulary", type=int, default=32_000)
    options.add_argument("--vllm", action="store_true", help="against vLLM's sampler, too")
    chosen = options.parse_args()
    import torch

    torch.set_num_threads(1)
    logits = torch.randn(chosen.rows, chosen.vocabulary)
    work = {**_steps(logits), **(_sampler(logits) if chosen.vllm else {})}
    best, order, drawn = dict.fromkeys([*work, "sampling"], 1e9), list(work), random.Random(0)

    def timed(name, run):
        began = time.thread_time()
        run()
        best[name] = min(best[name], time.thread_time() - began)

    with torch.no_grad():
        for _ in range(chosen.rounds):
            drawn.shuffle(order)
            for name in order:
                timed("sampling", lambda: torch.multinomial(torch.softmax(logits, -1), 1))
                timed(name, work[name])
    names = {"share": "guarded", "device_share": "as_on_a_device", "engine_share": "engine"}
    shares = {share: (best[name] - best["bare"]) / best["sampling"] for share, name in names.items()}
    told = {name: round(share, 4) for name, share in shares.items()}
    print(json.dumps({**told, **{f"{name}_us": round(took * 1e6, 1) for name, took in best.items()}}))
    return 0


def _steps(logits):
    """Return a forward: bare, with ``NumericGuard`` in two ways, and with what a vLLM worker is asked for."""
    import torch

    import rayguard
    from rayguard.engine.vllm.numbers.worker import bad_rows
    from rayguard.trainers import numeric_guard

    rows, vocabulary = logits.shape

    class Head(torch.nn.Module):
        """Makes logits: they are in the processor's cache, as after a matrix product."""

        def forward(self, given):
            return given * 1.0

    class Model(torch.nn.Module):
        """An embedding of 512 ids a row, and a head."""

        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(vocabulary, 8)
            self.lm_head = Head()

        def forward(self, ids, logits):
            self.words(ids)
            return self.lm_head(logits)

    ids = torch.randint(0, vocabulary, (rows, 512))
    bare, guarded = Model(), Model()
    rayguard.NumericGuard(guarded)
    on_the_host = numeric_guard._on_the_host

    def as_on_a_device():
        numeric_guard._on_the_host = lambda _: False
        try:
            guarded(ids, logits)
        finally:
            numeric_guard._on_the_host = on_the_host

    return {
        "bare": lambda: bare(ids, logits),
        "guarded": lambda: guarded(ids, logits),
        "as_on_a_device": as_on_a_device,
        "engine": lambda: bad_rows(bare(ids, logits)),
        "vllm_count": lambda: bare(ids, logits).isnan().sum(dim=-1, dtype=torch.int32),
    }


def _sampler(logits):
    """Return what vLLM's own sampling of these logits is on the CPU, which has no softmax of its own."""
    import torch
    import vllm._custom_ops  # noqa: F401 - it brings the operators

    seeds = torch.arange(logits.shape[0])
    return {
        "vllm_random": lambda: torch.ops._C.fused_gumbel_argmax(logits, seeds),
        "vllm_greedy": lambda: torch.ops._C.greedy_argmax(logits),
    }


if __name__ == "__main__":
    raise SystemExit(main())
