"""Training that goes wrong without an error: told from its curves, against what was usual in this run.

Decides and returns; writes nothing itself (``rayguard.trainers.alarm_incidents`` does), restarts nothing, and
looks at no tensor of the model. Steps that are not finite are ``rayguard.trainers.finite_steps``'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rayguard.errors import ConfigError
from rayguard.options import explained
from rayguard.trainers.usual_range import LEAST, SLOWEST, Curve, UsualRange, shared_equal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KINDS = ("reward_collapse", "kl_blow_up", "entropy_collapse", "zero_variance", "gradient_spikes")
_ADVICE = {
    "reward_collapse": "go back to a state of before it; see whether the reward function, its service or the "
    "data has changed, then lower the learning rate or raise the KL coefficient",
    "kl_blow_up": "go back to a state of before it, with a lower learning rate or a larger KL coefficient; "
    "see whether the engine still samples from the trainer's weights",
    "entropy_collapse": "go back to a state of before it, with an entropy bonus, a higher upper clip range, "
    "a higher sampling temperature, or a lower learning rate",
    "zero_variance": "sample more answers to a prompt, leave out prompts that are always or never solved "
    "(dynamic sampling), or look at the reward function: such steps have no gradient",
    "gradient_spikes": "clip the gradient's norm, lower the learning rate, look at the data since that step",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingAlarm:
    """One alarm: what went wrong, since which step, with which numbers, and what to do.

    ``value`` is of the step at which it was told; ``usual`` the median of the steps that it was compared with
    (the share that is still allowed, for ``zero_variance``).
    """

    kind: str  # one of reward_collapse, kl_blow_up, entropy_collapse, zero_variance, gradient_spikes
    since_step: int  # the first of the steps in a row that lay beyond the threshold
    step: int  # at which it was told
    value: float
    threshold: float
    usual: float
    advice: str

    @property
    def message(self) -> str:
        """Say what happened in one line."""
        of, beyond = _WORDS[self.kind]
        usual = "" if self.kind == "zero_variance" else f"; usual was {self.usual:.4g}"
        return (
            f"{of} is {self.value:.4g} at step {self.step}, {beyond} {self.threshold:.4g} since step "
            f"{self.since_step}{usual}"
        )

    def __str__(self) -> str:
        """Return the line and the advice."""
        return f"{self.kind}: {self.message} ({self.advice})"


_WORDS = {
    "reward_collapse": ("the mean reward", "below"),
    "kl_blow_up": ("the KL divergence", "above"),
    "entropy_collapse": ("the entropy", "below"),
    "zero_variance": ("the share of groups whose rewards are all equal", "at or above"),
    "gradient_spikes": ("the gradient's norm", "above"),
}


@explained
class TrainingAlarms:
    """Watches the curves of one run; nothing watches unless you make one and call ``observe``.

    ``alarms = rayguard.TrainingAlarms()``, then after each step ``for alarm in alarms.observe(step,
    reward=..., kl=...):``. An alarm is told once: again only after its curve was back for ``patience`` steps.
    It is also logged, and an incident in the journal.

    What is usual is learned from the run: median and spread (MAD) of the ``window`` values that came ten
    before, so that what has just begun is no part of it. It has a ``state_dict``: ``TrainerMixin`` keeps it.

    Args:
        window: Values that tell what is usual, 20 or more.
        grace: The first values of each curve, for which there is no alarm: longer than the warm-up of the
            learning rate; 30 or more.
        patience: Steps in a row beyond the threshold until there is an alarm, 10 at most.
        only: The kinds to tell, of ``KINDS``; all by default.
        on_alarm: Called with each ``TrainingAlarm``; what it raises comes out of ``observe``.
        journal: Whether an alarm is logged and an incident in the journal.

    Raises:
        ConfigError: An option makes no sense.
    """

    def __init__(
        self,
        *,
        window: int = 50,
        grace: int = 60,
        patience: int = 3,
        only: tuple[str, ...] | None = None,
        on_alarm: Callable[[TrainingAlarm], object] | None = None,
        journal: bool = True,
    ) -> None:
        for name, value, least, most in (
            ("window", window, LEAST, 10_000),
            ("grace", grace, LEAST + SLOWEST, 1_000_000),
            ("patience", patience, 1, SLOWEST),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ConfigError(f"{name} must be a whole number from {least} to {most}; got {value!r}")
        kinds: object = KINDS if only is None else only
        if not isinstance(kinds, (tuple, list)) or not set(kinds) <= set(KINDS):
            raise ConfigError(f"only must be a tuple out of {', '.join(KINDS)}; got {only!r}")
        if on_alarm is not None and not callable(on_alarm):
            raise ConfigError(f"on_alarm must be a function of one alarm; got {on_alarm!r}")
        self.told: list[TrainingAlarm] = []  # the last 100
        self._on_alarm, self._journal = on_alarm, journal
        self._curves = {
            kind: Curve(UsualRange(kind, window, grace), patience) for kind in KINDS if kind in kinds
        }
        self._step = 0

    def observe(  # noqa: PLR0913 - one keyword each
        self,
        step: int,
        *,
        reward: object = None,
        kl: object = None,
        entropy: object = None,
        grad_norm: object = None,
        rewards_by_group: object = None,
        zero_variance: object = None,
    ) -> tuple[TrainingAlarm, ...]:
        """Take the numbers of a step in, and return the alarms that begin with it; mostly none.

        Numbers or tensors of one element; None, NaN and what is no number is left out. A step that is not
        after the one before means that the run went back: what was seen of that step and later ones is
        forgotten.

        Args:
            step: Counts optimizer steps or iterations; its own number, so that alarms can name it.
            reward: The mean reward of the step.
            kl: The KL divergence to the reference or to the policy that sampled, in nats.
            entropy: The mean entropy of the policy, in nats a token.
            grad_norm: The norm of the gradient, before it is clipped.
            rewards_by_group: The rewards of each prompt's answers, shape (groups, answers): a tensor, lists,
                or a dictionary of them.
            zero_variance: In place of it, the share of groups whose rewards are all equal, 0 to 1 (TRL logs
                it as ``frac_reward_zero_std``).
        """
        step = self._number_of(step)
        share = shared_equal(rewards_by_group) if rewards_by_group is not None else _number(zero_variance)
        seen = {
            "reward_collapse": _number(reward),
            "kl_blow_up": _number(kl),
            "entropy_collapse": _number(entropy),
            "zero_variance": share,
            "gradient_spikes": _number(grad_norm),
        }
        begun = []
        for kind, curve in self._curves.items():
            value = seen[kind]
            if step <= self._step:
                curve.forget_from(step)
            if value is None or not curve.observe(step, value):
                continue
            since, threshold, usual = curve.verdict
            begun.append(
                TrainingAlarm(
                    kind=kind,
                    since_step=since,
                    step=step,
                    value=curve.last,
                    threshold=threshold,
                    usual=usual,
                    advice=_ADVICE[kind],
                )
            )
        self._step = step
        for alarm in begun:
            self._tell(alarm)
        return tuple(begun)

    def thresholds(self) -> Mapping[str, float | None]:
        """Return what would alarm now, by kind: a value beyond it, ``patience`` times in a row.

        Below it for ``reward_collapse`` and ``entropy_collapse``, above it for the others. None while the run
        has not shown yet what is usual.
        """
        return {kind: curve.threshold for kind, curve in self._curves.items()}

    def state_dict(self) -> dict[str, object]:
        """Return what was seen so far, in plain values."""
        return {"step": self._step, "curves": {kind: c.state_dict() for kind, c in self._curves.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was seen; kinds that are not told here are left out.

        Raises:
            ConfigError: It is no state of ``TrainingAlarms``.
        """
        try:
            step = int(state["step"])
            kept = {kind: dict(state["curves"][kind]) for kind in self._curves if kind in state["curves"]}
            for kind, one in kept.items():
                self._curves[kind].load_state_dict(one)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"this is no state of TrainingAlarms: {error!r}") from error
        self._step = step

    def _number_of(self, step: object) -> int:
        number = _number(step)
        return self._step + 1 if number is None else int(number)

    def _tell(self, alarm: TrainingAlarm) -> None:
        self.told = [*self.told[-99:], alarm]
        if self._journal:
            from rayguard.trainers.alarm_incidents import tell  # noqa: PLC0415 - writes; only where one is told

            tell(alarm.kind, alarm.message, alarm.advice)
        if self._on_alarm is not None:
            self._on_alarm(alarm)


def _number(value: object) -> float | None:
    """Return a finite number, None for what is none."""
    if value is None or isinstance(value, str):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]  # what is none raises
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch: of several elements
        return None
    return number if math.isfinite(number) else None
