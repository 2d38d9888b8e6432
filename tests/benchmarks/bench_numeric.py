"""What ``NumericGuard`` costs, beside softmax and sampling of the same logits: ``python -m tests.benchmarks.bench_numeric``.

One thread; each is timed in turn, round by round, and its fastest time counts: others on the machine only make
times longer. Bar: 0.015 of softmax and sampling together.
"""

from __future__ import annotations

import argparse
import json
import time


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=300)
    options.add_argument("--rows", type=int, default=8)
    options.add_argument("--vocabulary", type=int, default=32_000)
    chosen = options.parse_args()
    import torch

    import rayguard

    torch.set_num_threads(1)

    class Head(torch.nn.Module):
        """Makes logits: they are in the processor's cache, as after a matrix product."""

        def forward(self, given):
            return given * 1.0

    class Model(torch.nn.Module):
        """An embedding of 512 ids a row, and a head."""

        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(chosen.vocabulary, 8)
            self.lm_head = Head()

        def forward(self, ids, logits):
            self.words(ids)
            return self.lm_head(logits)

    ids = torch.randint(0, chosen.vocabulary, (chosen.rows, 512))
    logits = torch.randn(chosen.rows, chosen.vocabulary)
    bare, guarded = Model(), Model()
    guard = rayguard.NumericGuard(guarded)
    best = {"bare": 1e9, "guarded": 1e9, "sampling": 1e9}
    with torch.no_grad():
        for _ in range(chosen.rounds):
            for name, work in (
                ("bare", lambda: bare(ids, logits)),
                ("guarded", lambda: guarded(ids, logits)),
                ("sampling", lambda: torch.multinomial(torch.softmax(logits, -1), 1)),
            ):
                began = time.perf_counter()
                work()
                best[name] = min(best[name], time.perf_counter() - began)
    guard.check()
    share = (best["guarded"] - best["bare"]) / best["sampling"]
    microseconds = {f"{name}_us": round(took * 1e6, 1) for name, took in best.items()}
    print(json.dumps({"share_of_sampling": round(share, 4), **microseconds}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
