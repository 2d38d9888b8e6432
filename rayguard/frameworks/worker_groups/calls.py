"""What a call of a group of workers does to their state, by the name of its method. Pure.

The names are those of EasyR1 and of verl 0.8 to 0.9. A name that is not known counts as an update: what it
may have changed is made again, in its place among the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Effect(str, Enum):
    """What a call leaves behind in the workers."""

    NONE = "none"  # asked a second time, it answers alike
    SETTING = "setting"  # the last one of its kind says what holds
    UPDATE = "update"  # each one counts
    SAVE = "save"
    LOAD = "load"
    BEGIN = "begin"  # until the call that ends it
    END = "end"


SAVE, LOAD = "save_checkpoint", "load_checkpoint"
_NONE = (
    "generate_sequences",
    "compute_log_probs",
    "compute_ref_log_probs",
    "compute_values",
    "compute_log_prob",
    "compute_ref_log_prob",
    "compute_rm_score",
    "infer_batch",
    "_query_dispatch_info",
    "_query_collect_info",
    "start_profile",
    "stop_profile",
)
_KNOWN = {
    **dict.fromkeys(_NONE, Effect.NONE),
    **dict.fromkeys(("init_model", "set_loss_fn", "to", "reset"), Effect.SETTING),
    SAVE: Effect.SAVE,
    LOAD: Effect.LOAD,
    "prepare_rollout_engine": Effect.BEGIN,
    "wake_up": Effect.BEGIN,
    "release_rollout_engine": Effect.END,
    "sleep": Effect.END,
}
ENDS = {"release_rollout_engine": "prepare_rollout_engine", "sleep": "wake_up"}
_IN_ALL = "_execute_with_func_generator"  # a method of each worker class of both frameworks


@dataclass(frozen=True, slots=True)
class GroupMethod:
    """A method of a group: ``name`` without the ``role`` that stands before it where several share a process.

    ``blocking``: whether its caller waits for the workers' answers.
    """

    role: str
    name: str
    effect: Effect
    blocking: bool = True

    @property
    def whole(self) -> str:
        """Return the name that the workers know."""
        return self.of_role(self.name)

    def of_role(self, name: str) -> str:
        """Return what another method of the same role is called."""
        return f"{self.role}_{name}" if self.role else name


def roles_of(methods: Iterable[str]) -> tuple[str, ...]:
    """Return the roles that share a worker's process, from the names of its methods; longest first."""
    found = {name.removesuffix(_IN_ALL) for name in methods if name.endswith(_IN_ALL)}
    return tuple(sorted(found - {""}, key=len, reverse=True))


def method_of(whole: str, roles: Iterable[str], *, blocking: bool = True) -> GroupMethod:
    """Return what the method called ``whole`` is, in a process shared by ``roles``."""
    role = next((role for role in roles if whole.startswith(f"{role}_")), "")
    name = whole[len(role) + 1 :] if role else whole
    return GroupMethod(role, name, _KNOWN.get(name, Effect.UPDATE), blocking)
