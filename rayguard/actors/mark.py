"""The mark on a guarded class: how it is guarded, readable by whoever has the class."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from rayguard.actors.methods import IDEMPOTENT, MARK, state_methods
from rayguard.errors import ConfigError
from rayguard.faults.fault import Role
from rayguard.recovery.policy import GuardPolicy


class StateRule(str, Enum):
    """What becomes of an actor's state when its process ends: the rule of what may be restarted."""

    RESTORABLE = "restorable"  # it can say it: `state_methods`
    STATELESS = "none"  # there is none, as its user says; or what there is, is restored (rollouts)
    UNSAID = "unsaid"  # nobody knows: it is restarted only where its user has asked Ray for that


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarding:
    """How a class is guarded; ``rayguard.actors.guard.restart_options`` says how it travels.

    ``state``: what its user said of it; in what ``mark_of`` returns, what it is. ``state_methods``: as its
    user named them. ``idempotent``: its calls may run twice. ``late``: the class was guarded after its module
    had defined it. A worker that imports the module sees it bare, so its wrappers must travel with the actor
    class. ``implied``: guarded because of a base class (``RolloutMixin``); an explicit guard may say it in
    its own words. ``watching``: what happens is told, and nothing is done: no call is repeated, no process
    ended or given up, no option set. ``by_plugin``: guarded by name, without a word in the user's code.
    ``group``: the rank group that it was said to be of.
    """

    policy: GuardPolicy = field(default_factory=GuardPolicy)
    state: StateRule = StateRule.UNSAID
    state_methods: tuple[str, str] | None = None
    idempotent: bool | None = None  # None: not said, which is no
    role: Role = Role.ACTOR
    late: bool = False
    implied: bool = False
    watching: bool = False
    by_plugin: bool = False
    group: str = ""

    @property
    def ray_may_repeat(self) -> bool:
        """Say whether Ray may repeat calls: they may run twice, or the next life knows which were cut off."""
        return bool(self.idempotent) or self.state is StateRule.RESTORABLE


class Task:
    """Stands for a guarded function; each has a class of its own, of the function's name, with the mark."""


def may_run_twice(cls: type, name: str) -> bool:
    """Say whether a call of this method may be made a second time: as it says, else as its class does."""
    mark = mark_of(cls)
    return bool(getattr(getattr(cls, name, None), IDEMPOTENT, mark is not None and mark.idempotent))


def mark_of(cls: type) -> Guarding | None:
    """Return how ``cls`` (or a base of it) is guarded, or None. 0.1 ms where it says its state."""
    mark = getattr(cls, MARK, None)
    return replace(mark, state=_state_of(cls, mark)) if isinstance(mark, Guarding) else None


def _state_of(cls: type, mark: Guarding) -> StateRule:
    """Return what its user said, else what the class shows: a subclass may show what its base does not."""
    memory = mark.policy.memory
    implied = mark.role is Role.ROLLOUT or (memory is not None and memory.recycle == "stateless")
    if mark.state is StateRule.STATELESS or (implied and mark.state_methods is None):
        return StateRule.STATELESS
    return StateRule.UNSAID if mark.watching or state_methods(cls) is None else StateRule.RESTORABLE


def said_state(state: object) -> tuple[StateRule, tuple[str, str] | None]:
    """Read what a user says of a class's state, for ``Guarding``: nothing (None), "none", or two names.

    Raises:
        ConfigError: It is something else.
    """
    if state is None:
        return StateRule.UNSAID, None
    if state == StateRule.STATELESS.value:
        return StateRule.STATELESS, None
    if isinstance(state, (list, tuple)):
        match [name for name in state if isinstance(name, str) and name.isidentifier()]:
            case [save, load] if save != load and len(state) == 2:  # noqa: PLR2004 - a pair
                return StateRule.UNSAID, (save, load)
    raise ConfigError(
        'it must be "none", for a class without state to lose, or the names of two methods: the one that '
        'returns the state and the one that takes it up, as ["save", "load"]'
    )
