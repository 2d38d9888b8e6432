"""What an actor's creator tells of it: how often Ray repeats its calls, and whether rayguard restores it.

An actor cannot read its own ``max_task_retries`` in Ray 2.60, nor anybody else its class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.actors.life.incarnation import ActorMemory
from rayguard.actors.mark import mark_of
from rayguard.actors.methods import IDEMPOTENT, RAY_RETRIES

if TYPE_CHECKING:
    from rayguard.actors.mark import Guarding

RETRIES = "max_task_retries"
_PART = "options"
ALWAYS = -1  # Ray's "without end"; the policy's process_budget is what bounds it


def leave_word(
    actor_id: str,
    *,
    retries: int | None = None,
    asked: bool = False,
    repeats: bool = False,
    restored: bool = False,
    made: bool = True,
) -> None:
    """Leave word for an actor, and for who looks after it, of what its creator knows.

    ``retries``: how often Ray repeats its calls after a restart; None: no word of that. ``asked``: its user,
    and not rayguard, asked Ray for the restarts. ``repeats``: and for repeats of its calls. ``restored``:
    rayguard restores it, and so may end it. Where it was perhaps not ``made`` here but found
    (``get_if_exists``), the word of who made it stays.
    """
    memory = ActorMemory(actor_id, _PART)
    if made or not memory.load():
        said = {"asked": asked, "repeats": repeats, "restored": restored}
        word = {RETRIES: retries, **{key: value or None for key, value in said.items()}}
        memory.save({key: value for key, value in word.items() if value is not None})


def user_asked(actor_id: str) -> bool:
    """Say whether the actor's user asked Ray for its restarts, as far as there is word."""
    return bool(ActorMemory(actor_id, _PART).load().get("asked"))


def ray_is_to_repeat(cls: type, name: str, actor_id: str) -> bool:
    """Say whether the user asked Ray to repeat a call (``max_task_retries``), and told us nothing else."""
    mark, method = mark_of(cls), getattr(cls, name, None)
    if mark is None or mark.idempotent is not None or hasattr(method, IDEMPOTENT):
        return False
    said = getattr(method, RAY_RETRIES, None)  # by @ray.method
    return bool(ActorMemory(actor_id, _PART).load().get("repeats") if said is None else said)


def is_restored(actor_id: str) -> bool:
    """Say whether rayguard restores this actor; False where nobody knows."""
    return bool(ActorMemory(actor_id, _PART).load().get("restored"))


def ray_repeats(actor_id: str, mark: Guarding) -> bool:
    """Say whether Ray repeats this actor's calls after a restart, as far as its creator left word.

    Without a word it does, but not where the plugin guards: its creator may have known nothing of rayguard.
    """
    without_a_word = 0 if mark.by_plugin else ALWAYS
    return bool(ActorMemory(actor_id, _PART).load().get(RETRIES, without_a_word) != 0)
