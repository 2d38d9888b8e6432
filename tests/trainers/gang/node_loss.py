"""Two light Ray nodes with a gang over both of them, and the loss of one: all at once, as of a machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from dataclasses import dataclass, field

import psutil

import rayguard
from tests.cluster.node_pair import TwoNodes, until
from tests.trainers.gang.gang_trainers import small_trainer

HEAD_CPUS, OTHER_CPUS, RANKS = 9, 2, 3


@dataclass
class GangNodes(TwoNodes):
    """The head has room for all ranks of some gangs, the other node for one rank of each of two."""

    gangs: list = field(default_factory=list)

    def gang(self, **policy):
        """Make a gang with two ranks on the head and one on the other node."""
        before = len(self.gangs)
        with (
            self.taken(self.head, HEAD_CPUS - 2 * before - 2),
            self.taken(self.other, OTHER_CPUS - before - 1),
        ):
            found = rayguard.TrainerGang(
                small_trainer(),
                ranks=RANKS,
                options={"num_cpus": 1},
                policy=rayguard.GangPolicy(leave_s=20.0, **policy),
            )
        self.gangs.append(found)
        assert sorted(host.node == self.head for host in found._seats.taken()) == [False, True, True]
        return found

    @contextlib.contextmanager
    def taken(self, node_id, cpus):
        """Take CPUs of a node for the time of a block."""
        import ray

        class Taken:
            def there(self):
                return True

        actor = ray.remote(num_cpus=cpus)(Taken).options(**self.on(node_id)).remote()
        ray.get(actor.there.remote())
        try:
            yield
        finally:
            ray.kill(actor)

    def close(self):
        """End all gangs; nothing of theirs is left on a node that lives."""
        for gang in self.gangs:
            gang.close()
        self.gangs.clear()
        left = [path for home in self.homes.values() for path in (home / "snapshots").glob("*")]
        for path in left:
            path.unlink(missing_ok=True)  # the next test does not find it
        assert not left, left

    def lose(self, node_id):
        """End all processes of a node, and its disk."""
        processes = [info.process for infos in self.nodes[node_id].all_processes.values() for info in infos]
        pids = [one.pid for one in processes]
        pids += [child.pid for pid in pids for child in psutil.Process(pid).children(recursive=True)]
        for signal_number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal_number)
        home = self.homes[node_id]
        self.remove(node_id, graceful=False)
        shutil.rmtree(home)


def copied(gang):
    """Return once the states of the last call lie on other nodes."""
    until(lambda: gang.status().copies_behind == 0)


def keeper_pid(gang, node_id):
    """Return the process of a gang's keeper on a node; None where it has none that answers."""
    import ray

    keeper = gang._seats.copies._keepers._by_node.get(node_id)
    with contextlib.suppress(ray.exceptions.RayError):
        return keeper and ray.get(keeper.actor.__ray_call__.remote(lambda _: os.getpid()), timeout=20)
    return None
