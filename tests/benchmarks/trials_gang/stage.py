"""Where gangs are tried: a Ray of their own, gangs on it, and an ear for their orders."""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

import rayguard
from rayguard.trainers.gang.orders import CUT
from tests.benchmarks.trials_gang.plan import RANKS
from tests.benchmarks.trials_gang.trainer import TrialTrainer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.trials_gang.plan import Place

REPOSITORY = Path(__file__).resolve().parents[3]
CPUS = RANKS + 2
SPARES_S = 300.0
# As many recoveries as there are trials: what the budget forbids is not asked here.
POLICY = rayguard.GangPolicy(restarts=rayguard.RestartBudget(max_restarts=100_000, within_s=3_600.0))


@contextmanager
def own_ray(folder: Path) -> Iterator[None]:
    """Start a Ray on this machine for as long as the block runs, never joining another one."""
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    environment = {"RAYGUARD_HOME": str(folder / "rayguard"), "PYTHONPATH": path}
    os.environ["RAYGUARD_HOME"] = environment["RAYGUARD_HOME"]  # the journal is written by this process
    ray.init(
        address="local",
        num_cpus=CPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": environment},
    )
    logging.getLogger("rayguard").setLevel(logging.ERROR)  # each trial is told by its outcome
    try:
        yield
    finally:
        ray.shutdown()


class HungError(RuntimeError):
    """A call of the gang did not end."""


@contextmanager
def a_gang(folder: Path, place: Place) -> Iterator[rayguard.TrainerGang]:
    """Make a gang for trials, and end it."""
    args = (str(folder), place.strategy.value)
    gang = rayguard.TrainerGang(TrialTrainer, ranks=RANKS, spares=place.spares, args=args, policy=POLICY)
    try:
        yield gang
    except HungError:  # `close` would wait for the call
        gang._hosts.close()
        raise
    except BaseException:
        gang.close()
        raise
    gang.close()


def wait_for_spares(gang: rayguard.TrainerGang) -> None:
    """Return once the spares that a gang is starting are there: a fault comes long after the last one."""
    coming = [host.greeted for host in gang._seats._spare()]
    if coming:
        ray.wait(coming, num_returns=len(coming), timeout=SPARES_S)


class Ear:
    """Hears when a gang orders its ranks out."""

    def __init__(self, gang: rayguard.TrainerGang) -> None:
        self.cuts: list[float] = []
        self._give = gang._orders.give
        vars(gang._orders)["give"] = self._heard

    def _heard(self, do: str, **options: Any) -> int:
        if do == CUT:
            self.cuts.append(time.monotonic())
        return self._give(do, **options)
