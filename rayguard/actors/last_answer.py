"""What a process answered last before it ended: if a caller did not get it, the next life gives it again.

Ray repeats a call whose answer was lost with its process. Made a second time, a training step would be done
twice: its effects moved along with the state (``kept``).
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rayguard.actors import kept
from rayguard.actors.incarnation import ActorMemory
from rayguard.home import home

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.actors.incarnation import Incarnation

_PART = "answers"
_REPEATED_S = 300.0  # Ray repeats a call as soon as the next life is there


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returned."""

    value: Any


def present_task() -> str:
    """Return the id of the call that runs here; it is the same when Ray repeats it."""
    import ray  # noqa: PLC0415 - an actor runs here

    return ray.get_runtime_context().get_task_id() or ""


def keep(answers: Mapping[str, Any], life: Incarnation) -> None:
    """Write down what calls answered, by task, for the next life.

    Raises:
        Exception: One does not pickle, or there is no room.
    """
    word = kept.write(dict(answers), _PART, life, home())
    if not ActorMemory(life.actor_id, _PART).save({**asdict(word), "tasks": list(answers)}):
        kept.forget(word, life)


class LastAnswers:
    """What the life before this one answered last, for the calls that Ray repeats."""

    def __init__(self, tasks: list[str], word: kept.Word, life: Incarnation) -> None:
        self._tasks, self._word, self._life = frozenset(tasks), word, life
        self._until = time.monotonic() + _REPEATED_S

    @classmethod
    def of(cls, life: Incarnation) -> LastAnswers | None:
        """Return them, if some were kept."""
        memory = ActorMemory(life.actor_id, _PART)
        found = memory.load()
        if not found:
            return None
        memory.delete()
        return cls(found.pop("tasks"), kept.Word(**found), life)

    @property
    def over(self) -> bool:
        """Whether nobody will ask for them any more."""
        return time.monotonic() > self._until

    def to(self, task: str) -> Answer | None:
        """Return the answer to ``task``; None for a call that is none of them.

        Raises:
            StateLostError: It cannot be read, or is damaged.
        """
        return Answer(kept.read(self._word, self._life)[task]) if task in self._tasks else None

    def forget(self) -> None:
        """Remove the file."""
        kept.forget(self._word, self._life)
