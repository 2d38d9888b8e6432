"""What a callback of transformers' ``Trainer`` does for a run: TRL's trainers and ms-swift's are such.

- Gradients that are not finite: the step is left out (or the run ends), before the optimizer takes it.
- Parameters that are not finite are never saved: the run ends with the reason in place of a checkpoint.
- Memory is watched and relieved between steps; slow steps and curves that go wrong are told.

Everything else of the run stays as it is: what goes wrong in here is counted, and the step goes on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol, cast

from rayguard.actors.life import current_life, publishing
from rayguard.actors.mark import Guarding
from rayguard.actors.memory import call_boundary
from rayguard.actors.methods import MARK
from rayguard.errors import ConfigError
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.frameworks import told
from rayguard.frameworks.finite import gradients, not_finite, on_any_rank
from rayguard.frameworks.not_finite_error import GRADIENTS, PARAMETERS, NotFiniteError
from rayguard.frameworks.slow_steps import SlowSteps
from rayguard.harmless import harmless
from rayguard.options import explained
from rayguard.recovery.incident import Outcome
from rayguard.recovery.memory_policy import MemoryPolicy
from rayguard.recovery.policy import GuardPolicy
from rayguard.trainers.finite_steps import FiniteSteps, StepVerdict
from rayguard.trainers.training_alarms import TrainingAlarms

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

_log = logging.getLogger("rayguard")
_MARK = "rayguard_guarded_by"  # on the run's own ``TrainerControl``
_STEP = "step"
_ADVICE = (
    "Go on from the newest finite checkpoint (`rayguard run` finds it), with a lower learning rate, clipped "
    "gradients (max_grad_norm) or bfloat16; look at the rewards and the batch of that step"
)
_SKIP, _STOP = "skip", "stop"
_stands_for: list[object] = []


class _Run(Protocol):
    """What a trainer keeps of a run (``TrainerState``)."""

    global_step: int


class _Control(Protocol):
    """What callbacks tell a trainer (``TrainerControl``)."""

    should_save: bool


@explained
class TrainerGuard:
    """The events of a run, as transformers' ``TrainerCallback`` has them; all options are optional.

    Args:
        not_finite: ``"skip"`` leaves a step out whose gradients are not finite; ``"stop"`` ends the run.
        patience: So many in a row end the run: by then it is the weights, or the data.
        memory: What may be done about memory; None: it is not watched.
        slow_steps: Whether a step that takes far longer than those before it is told.
        alarms: The alarms of training's curves, from what the trainer logs; None: no alarms.

    Raises:
        ConfigError: An option makes no sense.
    """

    def __init__(
        self,
        *,
        not_finite: str = _SKIP,
        patience: int = 3,
        memory: MemoryPolicy | None = MemoryPolicy(recycle=None),  # noqa: B008 - frozen
        slow_steps: bool = True,
        alarms: TrainingAlarms | bool | None = True,
    ) -> None:
        if not_finite not in {_SKIP, _STOP}:
            raise ConfigError(f"not_finite must be {_SKIP!r} or {_STOP!r}, got {not_finite!r}")
        self.steps = FiniteSteps(1 if not_finite == _STOP else patience)
        self._memory, self._slow_steps = memory, slow_steps
        self._alarms = TrainingAlarms() if alarms is True else alarms or None
        self._watch: SlowSteps | None = None
        self._owner: object | None = None
        self._entered: call_boundary.Entered | None = None
        self._bad_from_the_start: frozenset[str] = frozenset()
        self._on = False

    # -- the run

    def on_init_end(self, _args: object, _state: _Run, control: _Control, **_: object) -> None:
        """Of several in one run the last that was added acts: the user's own, if there is one."""
        setattr(control, _MARK, self)

    def on_train_begin(self, args: object, _state: _Run, control: _Control, **given: object) -> None:
        """Begin to watch."""
        if getattr(control, _MARK, None) is None:
            setattr(control, _MARK, self)
        self._on = getattr(control, _MARK) is self
        if not self._on:
            return
        model = _model(given)
        with harmless("training"):
            self._begin(type(model).__name__)
        with harmless("training"):
            if model is not None:
                self._look_at_the_start(model)
        if getattr(args, "deepspeed", None):
            _log.warning(
                "rayguard: DeepSpeed steps by itself, so a step whose gradients are not finite is not left "
                "out; parameters are looked at before they are saved all the same"
            )

    def on_train_end(self, *_: object, **__: object) -> None:
        """Watch no more."""
        self._on = False
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _begin(self, name: str) -> None:
        mark = Guarding(policy=GuardPolicy(memory=self._memory), watching=True)
        self._owner = _stand_in(name, mark)
        publishing.record(current_life.state.incarnation, name)
        if self._memory is not None:
            from rayguard.actors.memory import memory_guard  # noqa: PLC0415 - costs 0.1 s

            memory_guard.watch(self._owner, mark)
        if self._watch is not None:  # of a run that an error has ended
            self._watch.close()
        if self._slow_steps:
            self._watch = SlowSteps(target=name)
            self._watch.start()

    def _look_at_the_start(self, model: torch.nn.Module) -> None:
        """A model may come with such numbers, in what it never uses: they say nothing of this run."""
        found = not_finite(model.named_parameters())
        if found:
            bad = [name for name, one in model.named_parameters() if not_finite([(name, one)])]
            self._bad_from_the_start = frozenset(bad)
            _log.error(
                "rayguard: %d parameters are NaN or infinite before the first step, the first of them %s: if "
                "this run goes on from a checkpoint, take an earlier one",
                len(bad),
                bad[0],
            )

    # -- steps

    def on_step_begin(self, _args: object, state: _Run, _control: _Control, **_: object) -> None:
        """Note that a step begins."""
        if self._on:
            with harmless("training"):
                if self._watch is not None:
                    self._watch.begun(int(state.global_step) + 1)
                self._entered = call_boundary.begin_call(self._owner, _STEP)

    def on_pre_optimizer_step(self, _args: object, state: _Run, _control: _Control, **given: object) -> None:
        """Leave the step out where a gradient is not finite, on any rank.

        Raises:
            NotFiniteError: There were as many in a row as it has patience.
        """
        model = _model(given)
        optimizer = cast("torch.optim.Optimizer | None", given.get("optimizer"))
        if not self._on or model is None or getattr(optimizer, "scaler", None) is not None:
            return  # float16's loss scaler leaves such steps out itself, and they are its daily bread
        found: tuple[str, ...] = ()
        with harmless("numbers"):
            found = not_finite(gradients(model))
        if not _on_any_rank(found, model):
            self.steps.judge()
            return
        verdict = self.steps.judge(float("nan"))
        step = int(state.global_step) + 1
        error = NotFiniteError(GRADIENTS, step, found, _ADVICE)
        self._tell(error, verdict)
        if verdict is not StepVerdict.SKIP:
            raise error
        for one in (model, optimizer):
            if one is not None:
                one.zero_grad(set_to_none=True)  # without a gradient a parameter has no step

    def on_step_end(self, _args: object, state: _Run, control: _Control, **given: object) -> None:
        """Relieve memory where that is needed; end the run in place of saving what is not finite.

        Raises:
            NotFiniteError: The parameters are not finite, and would be saved now.
        """
        if not self._on:
            return
        with harmless("training"):
            if self._watch is not None:
                self._watch.ended()
            if self._entered is not None:
                call_boundary.end_call(self._owner, _STEP, self._entered)
                self._entered = None
        self._before_a_save(state, control, _model(given))

    def on_epoch_end(self, _args: object, state: _Run, control: _Control, **given: object) -> None:
        """See ``on_step_end``: with ``save_strategy="epoch"`` it is said here that one is saved."""
        self._before_a_save(state, control, _model(given))

    def on_evaluate(self, args: object, state: _Run, control: _Control, **given: object) -> None:
        """See ``on_step_end``: with ``save_strategy="best"`` it is decided behind this that one is saved."""
        best = str(getattr(args, "save_strategy", "")).lower().endswith("best")
        self._before_a_save(state, _Saves() if best else control, _model(given))

    def on_log(
        self,
        _args: object,
        state: _Run,
        _control: _Control,
        logs: Mapping[str, object] | None = None,
        **_: object,
    ) -> None:
        """Look at the curves that the trainer logs."""
        if self._on and self._alarms is not None and logs:
            with harmless("training_alarm"):
                self._alarms.observe(
                    int(state.global_step),
                    reward=logs.get("reward"),
                    kl=logs.get("kl"),
                    entropy=logs.get("entropy"),
                    grad_norm=logs.get("grad_norm"),
                    zero_variance=logs.get("frac_reward_zero_std"),
                )

    def _before_a_save(self, state: _Run, control: _Control, model: torch.nn.Module | None) -> None:
        if not self._on or model is None or not getattr(control, "should_save", False):
            return
        found: tuple[str, ...] = ()
        with harmless("numbers"):
            old = self._bad_from_the_start
            found = not_finite((name, one) for name, one in model.named_parameters() if name not in old)
        if _on_any_rank(found, model):
            error = NotFiniteError(PARAMETERS, int(state.global_step), found, _ADVICE)
            control.should_save = False
            self._tell(error, StepVerdict.REWIND)
            raise error

    def _tell(self, error: NotFiniteError, verdict: StepVerdict) -> None:
        with harmless("training"):
            left_out = verdict is StepVerdict.SKIP
            incident = told.opened(
                Kind.NUMERIC_NAN,
                Scope.JOB,
                f"at step {error.step} {error.what}" + (f": {', '.join(error.names)}" if error.names else ""),
                signature="training.not_finite",
                target="training",
                advice="the step is left out" if left_out else _ADVICE,
            )
            outcome = Outcome.RECOVERED if left_out else Outcome.FAILED
            told.ended(incident, outcome, remedy="skip_step" if left_out else "stop")


def _on_any_rank(found: tuple[str, ...], model: torch.nn.Module) -> bool:
    """Ask the other ranks, also where nothing could be looked at here: they wait for an answer."""
    with harmless("numbers"):
        return on_any_rank(bool(found), model)
    return bool(found)


def _stand_in(name: str, mark: Guarding) -> object:
    """Return what stands for the trainers of this process: memory has one watch, for one after the other."""
    if not _stands_for:
        _stands_for.append(type(name, (), {MARK: mark})())
    return _stands_for[0]


def _model(given: Mapping[str, object]) -> torch.nn.Module | None:
    return cast("torch.nn.Module | None", given.get("model"))


class _Saves:
    """Says that a checkpoint may be saved next."""

    should_save = True


def callback_class(base: type, **members: object) -> type:
    """Return the callback as a class of ``base``: transformers' ``TrainerCallback``."""
    return type("Callback", (TrainerGuard, base), {"__module__": TrainerGuard.__module__, **members})
