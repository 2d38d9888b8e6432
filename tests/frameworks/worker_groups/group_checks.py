"""What holds for groups of workers that are looked after: checks for the small interface and for the real ones.

``Framework`` names what a check needs of either. Workers are small: their state is one number, and what they
save are files that are called as both frameworks call theirs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rayguard.frameworks.worker_groups import verl
from rayguard.frameworks.worker_groups.policy import GroupPolicy
from rayguard.recovery.incident import incident_of
from rayguard.recovery.journal import default_journal

PARTS = ("model", "optim", "extra_state")
NO_SNAPSHOTS = GroupPolicy(snapshot_ratio=0.0)
ALWAYS = GroupPolicy(snapshot_ratio=1.0)


@dataclass(frozen=True)
class Framework:
    """The names of a framework's single controller; ``base`` is the module that is changed."""

    base: Any
    Worker: Any
    register: Any
    Dispatch: Any
    pool: dict[str, Any]


@contextlib.contextmanager
def looked_after(framework, policy):
    """Have groups looked after for a while."""
    module, group_class = framework.base, framework.base.RayWorkerGroup
    before = dict(vars(module)), dict(vars(group_class))
    assert verl.attach(module, policy)
    try:
        yield
    finally:
        delattr(module, "__rayguard_groups__")
        module.func_generator = before[0]["func_generator"]
        for name, value in before[1].items():
            if not name.startswith("__"):
                setattr(group_class, name, value)


def trainer_class(  # noqa: C901 - all within one, as it is sent to the workers
    framework, *, collective=False, counts_what_it_saves=False
):
    """Return a class of workers. It is sent to them whole, so all that it needs is within."""
    to_all = {"dispatch_mode": framework.Dispatch.ONE_TO_ALL}
    each = {"dispatch_mode": framework.Dispatch.DP_COMPUTE}
    parts = PARTS

    class Trainer(framework.Worker):
        def __init__(self, folder):
            super().__init__()
            self.folder, self.value, self.awake = folder, None, False

        def strike(self, method):
            """Die here, where somebody has left word that this rank should."""
            import os
            import signal
            import threading
            from pathlib import Path

            word = Path(self.folder) / f"{method}-{self.rank}"
            if not word.exists():
                return
            word.unlink()
            if not collective:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
            while True:
                self.total(1.0)

        def total(self, number):
            if not collective:
                return number * self.world_size
            import torch
            import torch.distributed as dist

            found = torch.tensor([number], dtype=torch.float64)
            dist.all_reduce(found)
            return found.item()

        @framework.register(**to_all)
        def init_model(self):
            if collective:
                import torch.distributed as dist

                dist.init_process_group("gloo")
            self.value = 1.0

        @framework.register(**each)
        def update_actor(self, number):
            self.strike("update_actor")
            self.value = self.value * 1.25 + self.total(number) * (self.rank + 1)
            return self.value

        @framework.register(**each)
        def generate_sequences(self, number):
            self.strike("generate_sequences")
            assert self.awake
            return self.value * number

        @framework.register(**to_all)
        def compute_values(self):
            """Say where this worker is; changes nothing."""
            import os

            return os.getpid(), self.value, self.awake

        @framework.register(**to_all)
        def prepare_rollout_engine(self):
            self.awake = True

        @framework.register(**to_all)
        def release_rollout_engine(self):
            self.awake = False

        @framework.register(**each)
        def compute_log_prob(self, number):
            raise ValueError(f"no {number} on rank {self.rank}")

        def save(self, path):
            import json
            from pathlib import Path

            Path(path).mkdir(parents=True, exist_ok=True)
            print(f"saved {path}")
            for part in parts:
                name = f"{part}_world_size_{self.world_size}_rank_{self.rank}.pt"
                (Path(path) / name).write_text(json.dumps(self.value))

        @framework.register(**to_all)
        def load_checkpoint(self, path):
            import json
            from pathlib import Path

            name = f"model_world_size_{self.world_size}_rank_{self.rank}.pt"
            self.value = json.loads((Path(path) / name).read_text())
            (Path(self.folder) / f"loaded-{self.rank}").write_text(str(path))

        if counts_what_it_saves:

            @framework.register(**to_all)
            def save_checkpoint(self, local_path, hdfs_path=None, global_step=0, max_ckpt_to_keep=None):
                self.save(local_path)

        else:

            @framework.register(**to_all)
            def save_checkpoint(self, path, save_model_only=False):
                self.save(path)

    return Trainer


class Run:
    """A group of two, as a trainer makes one, and what its calls should answer."""

    def __init__(self, framework, ray, folder, **of):
        base = framework.base
        made = base.RayClassWithInitArgs(ray.remote(trainer_class(framework, **of)), str(folder))
        shared = base.create_colocated_worker_cls({"actor_rollout_ref": made})
        pool = base.RayResourcePool(process_on_nodes=[2], **framework.pool)
        self.whole = base.RayWorkerGroup(resource_pool=pool, ray_cls_with_init=shared)
        self.group = self.whole.spawn(prefix_set={"actor_rollout_ref"})["actor_rollout_ref"]
        self.folder, self.expected = Path(folder), [1.0, 1.0]
        self._ray, self._pool = ray, pool
        self.group.init_model()

    def strike(self, method, rank):
        """Have a rank killed within its next call of a method."""
        (self.folder / f"{method}-{rank}").write_text("")

    def update(self, number):
        """Make an update, and hold its answer against what it must be."""
        self.expected = [value * 1.25 + number * 2 * (rank + 1) for rank, value in enumerate(self.expected)]
        assert list(self.group.update_actor([number, number])) == self.expected

    def state(self):
        """Return the process of each worker, and hold its state against what it must be."""
        found = self.group.compute_values()
        assert [value for _, value, _ in found] == self.expected
        return [pid for pid, _, _ in found]

    def loaded(self):
        """Return from where each rank has loaded its state, last."""
        files = [self.folder / f"loaded-{rank}" for rank in range(2)]
        return [file.read_text() if file.exists() else "" for file in files]

    def close(self):
        """Let go of the workers and of their place."""
        for worker in vars(self.whole)["_workers"]:
            self._ray.kill(worker)
        for place in [getattr(self._pool, "_placed", None), *(getattr(self._pool, "pgs", None) or [])]:
            if place is not None:
                self._ray.util.remove_placement_group(place)


@contextlib.contextmanager
def run_of(framework, ray, folder, policy, **of):
    """Return a run that is looked after, and end it."""
    with looked_after(framework, policy):
        run = Run(framework, ray, folder, **of)
        try:
            yield run
        finally:
            run.close()


def incidents():
    """Return what was written of groups."""
    return [one for one in default_journal().read() if one.remedy == "restart_group"]


def check_updates_are_made_again(framework, ray, folder, *, collective=False):
    """A rank dies within an update: without any saved state, all updates are made again, to the digit."""
    before = len(incidents())
    with run_of(framework, ray, folder, NO_SNAPSHOTS, collective=collective) as run:
        lists = vars(run.whole)["_workers"], vars(run.group)["_workers"]
        run.update(1.0)
        run.update(2.5)
        assert verl.family_of(run.group).history.kept_bytes > 0, "in the object store"
        run.strike("update_actor", 1)
        first = run.state()
        run.update(4.0)
        second = run.state()
        assert not set(first) & set(second), "all processes are new ones"
        assert (vars(run.whole)["_workers"], vars(run.group)["_workers"]) == lists, "in the very same lists"
        run.update(0.5)
        assert run.loaded() == ["", ""]
        told = incidents()[before:]
        assert [one.outcome.value for one in told] == ["recovered"]
        assert "rank 1 died in actor_rollout_ref_update_actor" in told[0].cause
        assert told[0].scope == "group"
        return told[0].recover_s


def check_a_snapshot_in_memory(framework, ray, folder, *, collective=False):
    """Rank 0 dies: the state comes from memory, nothing of which has a name before or after."""
    with run_of(framework, ray, folder, ALWAYS, collective=collective) as run:
        run.update(1.0)
        run.update(2.5)
        assert not list(Path("/dev/shm").glob("rayguard-group-*"))
        run.strike("update_actor", 0)
        run.update(4.0)
        assert all(path.startswith("/dev/shm/rayguard-group-") for path in run.loaded())
        assert not list(Path("/dev/shm").glob("rayguard-group-*"))
        run.strike("update_actor", 0)
        run.update(0.5)
        run.state()


def check_a_checkpoint_of_the_users_own(framework, ray, folder, **of):
    """What was saved by the trainer is loaded, and only the updates since then are made again."""
    with run_of(framework, ray, folder, NO_SNAPSHOTS, **of) as run:
        run.update(1.0)
        run.group.save_checkpoint(str(folder / "global_step_1"))
        run.update(2.5)
        run.strike("update_actor", 1)
        run.update(4.0)
        assert run.loaded() == [str(folder / "global_step_1")] * 2
        run.state()


def check_an_engine_is_awake_again(framework, ray, folder):
    """A rank dies while it generates: the state is there, and the engine was prepared again."""
    with run_of(framework, ray, folder, NO_SNAPSHOTS) as run:
        run.update(1.0)
        run.group.prepare_rollout_engine()
        run.strike("generate_sequences", 1)
        assert list(run.group.generate_sequences([2.0, 3.0])) == [
            value * number for value, number in zip(run.expected, (2.0, 3.0), strict=True)
        ]
        assert all(awake for *_, awake in run.group.compute_values())
        run.group.release_rollout_engine()
        run.update(2.0)


def check_an_error_of_the_workers_own(framework, ray, folder):
    """Nobody died: the error is handed on as it is, and nothing is restarted or written."""
    before = len(incidents())
    with run_of(framework, ray, folder, NO_SNAPSHOTS) as run:
        first = run.state()
        with pytest.raises(ValueError, match="on rank"):
            run.group.compute_log_prob([1, 2])
        assert run.state() == first
        assert len(incidents()) == before


def check_where_nothing_is_done(framework, ray, folder):
    """Handles given to others: the death is answered as without rayguard, and told as not recovered."""
    from ray.exceptions import RayActorError

    before = len(incidents())
    with run_of(framework, ray, folder, NO_SNAPSHOTS) as run:
        run.update(1.0)
        assert len(run.whole.workers) == 2
        run.strike("update_actor", 0)
        with pytest.raises(RayActorError) as caught:
            run.group.update_actor([1.0, 1.0])
        found = incident_of(caught.value)
        assert found is not None
        assert "handles" in found.notes[0]
        told = incidents()[before:]
        assert [one.outcome.value for one in told] == ["failed"]
        assert "handles" in told[0].notes[0]
