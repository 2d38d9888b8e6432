"""How often Ray repeats an actor's calls after a restart: told by its creator, asked by the actor.

An actor cannot read its own ``max_task_retries`` in Ray 2.60.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.actors.incarnation import ActorMemory

if TYPE_CHECKING:
    from rayguard.actors.mark import Guarding

RETRIES = "max_task_retries"
ALWAYS = -1  # Ray's "without end"; the policy's process_budget is what bounds it


def tell_retries(actor_id: str, retries: int, *, made: bool = True) -> None:
    """Leave word for an actor of how often Ray repeats its calls after a restart.

    Where it was perhaps not ``made`` here but found (``get_if_exists``), the word of who made it stays.
    """
    word = ActorMemory(actor_id, "options")
    if made or not word.load():
        word.save({RETRIES: retries})


def ray_repeats(actor_id: str, mark: Guarding) -> bool:
    """Say whether Ray repeats this actor's calls after a restart, as far as its creator left word.

    Without a word it does, but not where the plugin guards: its creator may have known nothing of rayguard.
    """
    without_a_word = 0 if mark.by_plugin else ALWAYS
    return bool(ActorMemory(actor_id, "options").load().get(RETRIES, without_a_word) != 0)
