"""The keepers of a gang, one actor a node: started where needed, asked, and replaced when they fail."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rayguard.ray_internals.worker import connected_ray
from rayguard.trainers.gang.kept.copy_keeper import COPYING, CopyKeeper, OnNode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ray import ObjectRef
    from ray.actor import ActorHandle

_log = logging.getLogger("rayguard")
_START_S = 300.0  # of an actor, where the machine is busy
_ANSWER_S = 20.0
_SHUN_S = 600.0
_REST_S, _MOST_REST_S = 5.0, 300.0  # after the second failure of keepers on a node; in the end
_REMEMBERED = 64  # failures


@dataclass(slots=True)
class _Keeper:
    actor: ActorHandle
    up: bool = False  # it has answered once


class Keepers:
    """The actors by node; for any thread."""

    def __init__(self, gang: str) -> None:
        self._gang = gang
        self._lock = threading.RLock()  # a gang may be collected, and so closed, by whoever holds it
        self._by_node: dict[str, _Keeper] = {}
        self.failures = 0
        self._failed: tuple[tuple[float, str], ...] = ()  # the last ones: when, and on which node
        self._closed = False

    def on(self, node: str) -> ActorHandle:
        """Return the keeper of a node; a new one, where there is none.

        Raises:
            RuntimeError: All is over.
        """
        import ray  # noqa: PLC0415 - only a gang's owner gets here
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        with self._lock:
            if self._closed:
                raise RuntimeError("the gang is closed")
            if node not in self._by_node:
                options = {
                    "num_cpus": 0,
                    "max_restarts": 0,
                    "max_concurrency": 2,
                    "concurrency_groups": {COPYING: 1},
                    "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
                }
                actor = ray.remote(**options)(CopyKeeper).remote(self._gang)
                self._by_node[node] = _Keeper(actor)
            return self._by_node[node].actor

    def nodes(self) -> set[str]:
        """Return the nodes that have one."""
        with self._lock:
            return set(self._by_node)

    def ready(self, nodes: Collection[str]) -> bool:
        """Say whether all of these nodes have one that answers; waits for those that start."""
        asked = {node: self.on(node).standing.remote(0, ()) for node in nodes if not self._is_up(node)}
        return len(self.answers(asked, _START_S)) == len(asked)

    def ask(self, nodes: Collection[str]) -> bool:
        """Say whether the keepers of these nodes answer; one that does not is replaced."""
        asked = {node: self.on(node).standing.remote(0, ()) for node in nodes}
        return len(self.answers(asked)) == len(asked)

    def _is_up(self, node: str) -> bool:
        with self._lock:
            return node in self._by_node and self._by_node[node].up

    def answers(self, asked: Mapping[str, ObjectRef], deadline_s: float = _ANSWER_S) -> dict[str, Any]:
        """Return what the keepers of some nodes answer; those that fail, or are silent, are ended."""
        import ray  # noqa: PLC0415 - as above

        found: dict[str, Any] = {}
        until = time.monotonic() + deadline_s
        for node, ref in asked.items():
            try:
                found[node] = ray.get(ref, timeout=max(0.0, until - time.monotonic()))
            except Exception as error:  # noqa: BLE001 - whatever it is, this keeper is of no use
                self.failed(node, repr(error))
                continue
            with self._lock:
                if node in self._by_node:
                    self._by_node[node].up = True
        return found

    def standing(
        self, layout: int, homes: Sequence[str], deadline_s: float
    ) -> dict[str, tuple[ActorHandle, OnNode]]:
        """Return the keepers that answer in time, by node, and what their nodes have."""
        import ray  # noqa: PLC0415 - as above

        with self._lock:
            actors = {node: keeper.actor for node, keeper in self._by_node.items()}
        asked: dict[ObjectRef, str] = {}
        for node, actor in actors.items():
            ranks = [rank for rank, home in enumerate(homes) if home == node]
            with contextlib.suppress(Exception):  # dead already
                asked[actor.standing.remote(layout, ranks)] = node
        refs = list(asked)
        ready = ray.wait(refs, num_returns=len(refs), timeout=deadline_s)[0] if refs else []
        found: dict[str, tuple[ActorHandle, OnNode]] = {}
        for ref in ready:
            with contextlib.suppress(Exception):
                found[asked[ref]] = actors[asked[ref]], ray.get(ref)
        return found

    def failed(self, node: str, why: str) -> None:
        """End a keeper that is of no use: another one, on another node if there is one, takes over."""
        now = time.time()
        with self._lock:
            keeper = self._by_node.pop(node, None)
            if keeper is None or self._closed:
                return
            self._failed = (*self._failed[1 - _REMEMBERED :], (now, node))
            self.failures += 1
        _log.warning("rayguard: copies of states on node %s are lost: %s", node, _short(why))
        _end(keeper.actor)

    def shunned(self) -> set[str]:
        """Return the nodes where keepers have failed of late."""
        now = time.time()
        return {node for at, node in self._failed if now - at < _SHUN_S}

    def rests(self, nodes: Collection[str]) -> bool:
        """Say whether one of these nodes has to wait for a keeper: two or more have failed there of late.

        The longer, the more there were: on a node that is lost, and not known to be, each of them fails.
        """
        now = time.time()
        for node in set(nodes) - self.nodes():
            ends = [at for at, one in self._failed if one == node and now - at < _SHUN_S]
            if len(ends) > 1 and now - ends[-1] < min(_MOST_REST_S, _REST_S * 2 ** (len(ends) - 2)):
                return True
        return False

    def only_on(self, nodes: Collection[str]) -> None:
        """End the keepers of other nodes: nobody needs them, or the node is lost."""
        with self._lock:
            others = [self._by_node.pop(node).actor for node in set(self._by_node) - set(nodes)]
        for actor in others:
            _end(actor)

    def close(self) -> None:
        """End all, and start no more."""
        self._closed = True
        self.only_on(())


def _end(actor: ActorHandle) -> None:
    ray = connected_ray()
    if ray is not None:  # else they are gone, and this would connect to whatever cluster there is
        with contextlib.suppress(Exception):  # dead already
            ray.kill(actor, no_restart=True)


def _short(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else "?"
