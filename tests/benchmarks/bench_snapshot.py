"""What keeping an actor's state costs the call that waits for it, beside a copy of the same bytes in memory.

A real actor of Ray trains a small model with AdamW. At the end of each call rayguard keeps its state, by the
whole of its way (``state_dict``, pickling, the mapped file, the call's answer); then, or before it at every
other call, the tensors of the same state are copied one by one into buffers that are kept. The last line is
JSON: of a model with few tensors, of one with many, and of the first where every fourth call is kept: medians
in ms, the ratio of both, and the share of a step of 100 ms (of the mean: most calls of the last keep nothing).
It fails where the ratio for few tensors is above 1.5, or the share above 0.02 with every fourth call. Whether
the share is below that with each call, too, is up to the machine: a copy alone must take 1.3 ms for it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import rayguard

MOST_RATIO, MOST_SHARE = 1.5, 0.02
STEP_S = 0.1
CALLS, WARM = 200, 20
SHAPES = {"few": (8, 456), "many": (128, 113)}  # layers, and how wide each is: 20 MB of state, either way
FOURTH = rayguard.GuardPolicy(snapshot=rayguard.SnapshotPolicy(every_calls=4))


class Measured:
    """Stands before the keeper of an actor, and times its end of a call beside a plain copy."""

    def __init__(self, keeper, trainer):
        self.keeper, self.trainer = keeper, trainer
        self.begun = keeper.begun
        self.kept_s, self.copied_s = [], []
        self.buffers = [tensor.detach().clone() for tensor in trainer._tensors()]

    def ended(self, place, name, answer):
        turns = [(self.kept_s, lambda: self.keeper.ended(place, name, answer)), (self.copied_s, self.copy)]
        for took, do in turns if len(self.kept_s) % 2 else turns[::-1]:
            began = time.perf_counter()
            do()
            took.append(time.perf_counter() - began)

    def copy(self):
        for buffer, tensor in zip(self.buffers, self.trainer._tensors(), strict=True):
            buffer.copy_(tensor)


class Trainer:
    """A model of which each step changes every number."""

    def __init__(self, layers, width):
        import torch

        self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=True)
        self.inputs = torch.randn(8, width)

    def step(self):
        loss = self.model(self.inputs).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state_dict(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _tensors(self):
        moments = [list(one.values()) for one in self.optimizer.state.values()]
        return [*self.model.state_dict().values(), *(tensor for one in moments for tensor in one)]

    def measure(self):
        from rayguard.actors.memory import call_boundary

        call_boundary.keeper = Measured(call_boundary.keeper, self)

    def measured(self):
        from rayguard.actors.memory import call_boundary

        found, call_boundary.keeper = call_boundary.keeper, call_boundary.keeper.keeper
        return found.kept_s[WARM:], found.copied_s[WARM:], [one.nbytes for one in found.buffers]


def compared(policy: rayguard.GuardPolicy, layers: int, width: int) -> dict[str, float]:
    """Return what an actor with such a model says."""
    import ray

    trainer = rayguard.guard(policy=policy)(type("Trainer", (), dict(vars(Trainer))))
    actor = ray.remote(num_cpus=1)(trainer).remote(layers, width)
    ray.get(actor.step.remote())
    ray.get(actor.measure.remote())
    for _ in range(CALLS + WARM):
        ray.get(actor.step.remote())
    kept_s, copied_s, sizes = ray.get(actor.measured.remote())
    ray.kill(actor)
    kept, copied = statistics.median(kept_s), statistics.median(copied_s)
    return {
        "mb": round(sum(sizes) / 1e6, 1),
        "tensors": len(sizes),
        "copy_ms": round(copied * 1e3, 2),
        "snapshot_ms": round(kept * 1e3, 2),
        "snapshot_p95_ms": round(statistics.quantiles(kept_s, n=20)[-1] * 1e3, 2),
        "ratio": round(
            statistics.median(one / other for one, other in zip(kept_s, copied_s, strict=True)), 2
        ),
        "share": round(statistics.mean(kept_s) / STEP_S, 4),
    }


def main() -> int:
    """Print the figures; 1 where a bar is missed."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        found = {name: compared(rayguard.GuardPolicy(), *shape) for name, shape in SHAPES.items()}
        found["every fourth"] = compared(FOURTH, *SHAPES["few"])
    finally:
        ray.shutdown()
    for name, told in found.items():
        print(f"{name}: {told}")
    print(json.dumps({**found, "load": round(os.getloadavg()[0], 1)}))
    return int(found["few"]["ratio"] > MOST_RATIO or found["every fourth"]["share"] > MOST_SHARE)


if __name__ == "__main__":
    sys.exit(main())
