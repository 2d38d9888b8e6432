"""The state of one rank's trainer: kept after each call, in two slots of a mapped file, and taken up again.

The same store as of restorable actors (``rayguard.process.snapshot_file``), under a name that outlives the
rank's process: the gang's, the rank's and the job's. It goes with the job
(``rayguard.actors.life.snapshot_files``). Up to two more slots hold what is copied to another node: ``kept``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.actors.life.saved_state import call_on
from rayguard.actors.methods import bare, state_methods
from rayguard.errors import StateLostError
from rayguard.process import state_bytes
from rayguard.process.snapshot_file import SnapshotFile, read_snapshot
from rayguard.process.snapshot_slots import MOST_SLOTS
from rayguard.ray_internals.object_refs import unpinned
from rayguard.trainers.gang.checkpoint import read_parts, write_part
from rayguard.trainers.gang.kept.rank_files import path_of_rank
from rayguard.trainers.held_parts import held_by
from rayguard.trainers.shards import meshes_of, put_together, shared_anew, taken_apart

if TYPE_CHECKING:
    from rayguard.trainers.gang.rank_group import JoinOrder


class RankState:
    """Keeps and restores the state of one rank's trainer; by the main thread."""

    def __init__(self, order: JoinOrder) -> None:
        self.place = (order.layout, order.rank)
        self._file = SnapshotFile(path_of_rank(order.gang, *self.place), both=True, slots=MOST_SLOTS)
        self._checkpoint, self._every = order.checkpoint, order.checkpoint_every

    def close(self) -> None:
        """Let go of what was kept, and leave it where it is."""
        self._file.close()

    def keep(self, number: int, trainer: object) -> None:
        """Keep the state as it is after ``number`` calls.

        Raises:
            OSError: There is no room.
            Exception: What ``state_dict`` or pickling raised.
        """
        save, _ = _methods(trainer)
        with unpinned():
            parts = state_bytes.to_parts(taken_apart(bare(trainer, save)()))
        self._file.write_as(number, parts)
        if self._checkpoint and number and number % self._every == 0:
            write_part(self._checkpoint, number, self.place[1], parts)

    def restore(self, order: JoinOrder, trainer: object, node: str) -> None:
        """Give a new trainer the state that ``order`` names, and keep it as this rank's newest.

        Raises:
            StateLostError: It cannot be had, or the trainer does not take it.
        """
        state, number = _found(order, node), order.number or 0
        _, load = _methods(trainer)
        try:
            bare(trainer, load)(put_together(state, meshes_of(one.value for one in held_by(trainer))))
        except StateLostError:
            raise
        except Exception as error:
            raise StateLostError(f"rank {order.rank} does not take its state: {error!r}") from error
        del state
        if order.disk or order.layout != order.from_layout or not self._file.back_to(number):
            self.keep(number, trainer)


def _found(order: JoinOrder, node: str) -> Any:
    if order.disk is not None and order.disk.size == order.size:
        return read_parts(order.disk, [order.rank])[0]
    if order.disk is not None:
        return shared_anew(read_parts(order.disk, range(order.disk.size)), order.rank, order.size)
    if order.layout == order.from_layout:
        return _read(order, order.rank, node)
    states = [_read(order, rank, node) for rank in range(len(order.kept_by))]
    return shared_anew(states, order.rank, order.size)


def _read(order: JoinOrder, rank: int, node: str) -> Any:
    copy = order.copies[rank] if order.copies else None
    number, where = order.number or 0, order.kept_by[rank]
    read = partial(_bytes, order.gang, order.from_layout, rank, number)
    try:
        if copy is not None:
            return state_bytes.from_bytes(copy.read())
        data = read() if where == node else call_on(where, lambda _: read(), Path())
        if data is not None:
            return state_bytes.from_bytes(data)
    except StateLostError:
        raise
    except Exception as error:
        raise StateLostError(f"the state of rank {rank} on node {where} cannot be read: {error!r}") from error
    raise StateLostError(f"the state of rank {rank} after {number} calls is not there any more")


def _bytes(gang: str, layout: int, rank: int, number: int) -> bytes | None:
    found = read_snapshot(path_of_rank(gang, layout, rank), number)
    return None if found is None else found.data


def _methods(trainer: object) -> tuple[str, str]:
    found = state_methods(type(trainer))
    if found is None:  # checked as the gang is made
        raise StateLostError(f"{type(trainer).__name__} has no state_dict and load_state_dict")
    return found
