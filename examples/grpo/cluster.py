"""Ray and the actors of the demo: started and ended.

What the driver imports stays light: torch, transformers and vLLM are imported by the actors that need them.
"""

# ruff: noqa: PLC0415 - heavy libraries are imported where they are used: the driver does without them

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from tokenizers import Tokenizer

from examples.grpo.bare import BareRollouts
from examples.grpo.rollout import Rollouts, fuse_of
from examples.grpo.sampling import ENVIRONMENT
from examples.grpo.trainer import Trainer
from rayguard.testing.fuse import Fuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from examples.grpo.history import History
    from examples.grpo.samples import Sample
    from examples.grpo.trainer import Metrics

ROLLOUTS = 2
START_DEADLINE_S = 300.0
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Cast:
    """Who takes part: the actors, the tokenizer that prompts are made with, a fuse for each rollout."""

    train: Callable[[Sequence[Sample]], Future[Metrics]]
    rollouts: Rollouts | BareRollouts
    fuses: tuple[Fuse, ...]
    tokenizer: Tokenizer
    end: Callable[[], None]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ``text``."""
        return self.tokenizer.encode(text).ids


@contextmanager
def ray_cluster(home: Path) -> Iterator[None]:
    """Join the cluster of ``RAY_ADDRESS``, else start one on this machine for as long as the block runs."""
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    environment = {**ENVIRONMENT, "RAYGUARD_HOME": str(home), "PYTHONPATH": path}
    os.environ["RAYGUARD_HOME"] = str(home)  # the driver reads the journal that the actors write
    # "local": not into a cluster that somebody else happens to run on this machine.
    own = {"address": "local", "num_cpus": ROLLOUTS + 2, "include_dashboard": False}
    cluster: dict[str, Any] = {} if os.environ.get("RAY_ADDRESS") else own
    # The workers' log lines would tear the live view apart; Ray keeps them in its session folder.
    ray.init(**cluster, log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": environment})
    logging.getLogger("vllm").setLevel(logging.ERROR)  # imported here only to unpickle an engine's error
    try:
        yield
    finally:
        ray.shutdown()


def hire(out: Path, *, seed: int, history: History) -> Cast:
    """Build the model and start the actors; returns before the engines are up."""
    folder = ray.get(_build_model.remote(out / "model", seed), timeout=START_DEADLINE_S)
    rollouts: Rollouts | BareRollouts
    if history.gang:
        from examples.grpo.gang import GangOfRanks

        gang = GangOfRanks(str(folder), history)
        train, end = gang.step, gang.close
        rollouts = Rollouts(str(folder), out, gang.weights, engines=ROLLOUTS)
    else:
        trainer = Trainer.options(name="trainer").remote(str(folder))
        train, end = (lambda samples: trainer.step.remote(samples).future()), _nothing
        rollouts = (Rollouts if history.guarded else BareRollouts)(str(folder), out, engines=ROLLOUTS)
    fuses = tuple(Fuse(fuse_of(out, handle._actor_id.hex())) for handle in rollouts.handles)  # noqa: SLF001
    return Cast(train, rollouts, fuses, Tokenizer.from_file(str(folder / "tokenizer.json")), end)


def _nothing() -> None:
    """Ray ends its actors."""


@ray.remote
def _build_model(folder: Path, seed: int) -> Path:
    from examples.grpo.model import build

    return build(folder, seed)
