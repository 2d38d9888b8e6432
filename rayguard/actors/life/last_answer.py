"""What a process answered last before it ended: if a caller did not get it, the next life gives it again.

Ray repeats a call whose answer was lost with its process. Made a second time, a training step would be done
twice: its effects moved along with the state (``saved_state``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rayguard.actors.life import saved_state
from rayguard.actors.life.incarnation import ActorMemory, Incarnation
from rayguard.home import home
from rayguard.ray_internals.worker import connected_ray

if TYPE_CHECKING:
    from collections.abc import Mapping


_PART = "answers"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returned."""

    value: Any


def current_task() -> str:
    """Return the id of the call that runs here; it is the same when Ray repeats it. '': no call of Ray's."""
    ray = connected_ray()
    return "" if ray is None else ray.get_runtime_context().get_task_id() or ""


def keep(answers: Mapping[str, object], life: Incarnation) -> None:
    """Write down what calls answered, by task, for the next life.

    Raises:
        Exception: One does not pickle, or there is no room.
    """
    note = saved_state.write(dict(answers), _PART, life, home())
    if not ActorMemory(life.actor_id, _PART).save({**asdict(note), "tasks": list(answers)}):
        saved_state.forget(note, life)


class LastAnswers:
    """What the life before this one answered last, for the calls that Ray repeats."""

    def __init__(self, tasks: list[str], note: saved_state.StateNote, life: Incarnation) -> None:
        self.tasks, self._note, self._life = frozenset(tasks), note, life

    @classmethod
    def of(cls, life: Incarnation) -> LastAnswers | None:
        """Return them, if some were kept."""
        memory = ActorMemory(life.actor_id, _PART)
        found = memory.load()
        if not found:
            return None
        memory.delete()
        return cls(found.pop("tasks"), saved_state.StateNote(**found), life)

    def to(self, task: str) -> Answer | None:
        """Return the answer to ``task``, one of ``tasks``.

        Raises:
            StateLostError: It cannot be read, or is damaged.
        """
        return Answer(saved_state.read(self._note, self._life)[task])

    def forget(self) -> None:
        """Remove the file."""
        saved_state.forget(self._note, self._life)
