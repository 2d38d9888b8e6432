"""``TrainerMixin``: an actor that trains, whose state is found and kept by itself."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from typing import Any

from rayguard.actors.guard.guard import guard_class
from rayguard.actors.mark import Guarding, mark_of
from rayguard.actors.methods import leave
from rayguard.errors import ConfigError
from rayguard.faults.fault import Role
from rayguard.trainers.finite_steps import FiniteSteps, StepVerdict
from rayguard.trainers.found_state import found_state, not_kept, random_state, restore_state
from rayguard.trainers.plain_values import MOST_VALUES

_log = logging.getLogger("rayguard")
RANKS = "_rayguard_ranks"  # the attribute of a trainer that is a rank of a gang: how many there are
_PARTS = "_rayguard_parts"  # the attribute that names the parts which there were as the state was kept first
_GROWN = "_rayguard_grown"  # and what has been said of since
_GOOD_EVERY = 20  # steps between two states that a rewind may go back to


class TrainerMixin:
    """An actor that trains: after any death of its process, its next life goes on from its last state.

    Write a class as you would, with the model, the optimizer and the number of the step as attributes that
    ``__init__`` makes. What is kept is said in ``rayguard.trainers.found_state``; ``state_excludes`` names
    attributes that are no state, ``state_gradients = False`` leaves gradients out (they cost a third more;
    they matter where they are accumulated over several calls).

    Call ``self.step_is_finite(loss, norm)`` before ``optimizer.step()``: where it is False, leave the step
    out.
    """

    state_excludes: tuple[str, ...] = ()
    state_gradients = True
    rewind_after: int | None = (
        3  # steps in a row that are not finite; None: they are left out, and nothing else
    )

    def __init_subclass__(cls, **options: object) -> None:
        """Guard the class, as ``@rayguard.guard`` does; that may be said as well.

        Raises:
            ConfigError: ``state_excludes`` is a text, and no tuple of names.
        """
        super().__init_subclass__(**options)
        excluded: object = cls.state_excludes
        if isinstance(excluded, str):
            raise ConfigError(f"{cls.__name__}.state_excludes must be a tuple of names: ({excluded!r},)")
        if str(getattr(cls.state_dict, "__module__", "")).startswith("torch."):
            raise ConfigError(
                f"{cls.__name__}.state_dict would be torch's, which gives the weights and nothing else: name "
                "rayguard.TrainerMixin before torch's class among its bases"
            )
        if "__ray_actor_class__" not in vars(cls):  # not for Ray's own subclass, made by @ray.remote
            mark = mark_of(cls) or Guarding()
            guard_class(cls, replace(mark, role=Role.TRAINER, implied=True))

    @leave
    def state_dict(self) -> dict[str, Any]:
        """Return all that the next life needs; tensors are this trainer's own, not copies.

        Raises:
            ConfigError: Something is no state that can be kept: an iterator, say.
        """
        excluded, ours = self.state_excludes, vars(self)
        state = found_state(
            self,
            without=excluded,
            gradients=self.state_gradients,
            sharded=bool(ours.get(RANKS)),
            grown=self._grown if _PARTS in ours else None,
        )
        self._tell_late(state)
        if _PARTS not in ours:
            ours[_PARTS] = frozenset(state["parts"])
            left = not_kept(self, without=excluded)
            if left:
                _log.warning(
                    "rayguard: of %s, %s would be kept over a death; %s is made anew by __init__ "
                    "(state_excludes = %r says that this is right)",
                    type(self).__name__,
                    ", ".join([*state["parts"], *state["values"]]) or "nothing",
                    ", ".join(left),
                    tuple(left),
                )
        return state

    @leave
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of another life.

        Raises:
            StateLostError: ``__init__`` has not made something that has a state.
        """
        restore_state(self, state)

    @leave
    def step_is_finite(self, *numbers: Any) -> bool:
        """Say whether a step may be taken: its loss, its gradient's norm (numbers or tensors of one element).

        Where one is not finite: False, and the step is to be left out. After ``rewind_after`` in a row the
        state goes back by itself to one of at least 20 good steps before, random numbers not (else the same
        would come again). Both are counted (``finite_steps``) and told in the log.
        """
        steps = self.finite_steps
        found = [float(one.detach() if hasattr(one, "detach") else one) for one in numbers]
        verdict = steps.judge(*found)
        if verdict is StepVerdict.TAKE:
            if self.rewind_after is not None and steps.taken % _GOOD_EVERY == 1:
                vars(self)["_rayguard_good"] = [*self._good()[-1:], self._copied()]
            return True
        said = ", ".join(f"{number:g}" for number in found)
        if verdict is StepVerdict.SKIP or self.rewind_after is None:
            _log.warning("rayguard: a step of %s is left out: %s", type(self).__name__, said)
        else:
            self._rewind(said)
        return False

    @property
    def finite_steps(self) -> FiniteSteps:
        """How many steps were taken, left out, and gone back for."""
        if "_rayguard_steps" not in vars(self):
            vars(self)["_rayguard_steps"] = FiniteSteps(self.rewind_after or 1)
        found: FiniteSteps = vars(self)["_rayguard_steps"]
        return found

    def _tell_late(self, state: dict[str, Any]) -> None:
        """Say once of parts that a call has made, and not ``__init__``: no next life could take them up."""
        late = sorted(state["parts"].keys() - vars(self).get(_PARTS, state["parts"].keys()))
        if late and self._is_news(", ".join(late)):
            _log.warning(
                "rayguard: %s.%s was not made by __init__ (of a gang's rank: setup), so after a death its "
                "state could not be taken up, and calls would end with StateLostError: make it there",
                type(self).__name__,
                ", ".join(late),
            )

    def _grown(self, name: str) -> None:
        if self._is_news(name):
            _log.warning(
                "rayguard: %s.%s has grown to more than %s values, which are kept after each call: if it is "
                "data and not state, say so by state_excludes = (%r,)",
                type(self).__name__,
                name,
                f"{MOST_VALUES:,}",
                name,
            )

    def _is_news(self, name: str) -> bool:
        told: set[str] = vars(self).setdefault(_GROWN, set())
        news = name not in told
        told.add(name)
        return news

    def _rewind(self, said: str) -> None:
        good = self._good()
        if not good:
            _log.error(
                "rayguard: %d steps of %s in a row are not finite (%s), and there is no state to go back to",
                self.rewind_after,
                type(self).__name__,
                said,
            )
            return
        _log.error(
            "rayguard: %d steps of %s in a row are not finite (%s): its state goes back to an earlier one",
            self.rewind_after,
            type(self).__name__,
            said,
        )
        state = copy.deepcopy(good[0])
        state["random"] = random_state()
        restore_state(self, state)

    def _good(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = vars(self).get("_rayguard_good", [])
        return found

    def _copied(self) -> dict[str, Any]:
        return copy.deepcopy(self.state_dict())
