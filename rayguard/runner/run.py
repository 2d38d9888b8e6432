"""A command from its first start to its end: watched, diagnosed, started again as ``machine`` decides.

Raises nothing for what the command does: that is in the ``RunSummary``. What is shown of it is
``rayguard.cli.run``'s.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rayguard.errors import ConfigError
from rayguard.faults.diagnose import unknown
from rayguard.harmless import harmless
from rayguard.process.flight.readings import Machine
from rayguard.recovery.incident import Outcome
from rayguard.redact import redacted
from rayguard.runner import resume
from rayguard.runner.ending import Ending
from rayguard.runner.failure import Circumstances, RunFailure, failure_of
from rayguard.runner.life.child import Manner, live
from rayguard.runner.life.environment import environment_of
from rayguard.runner.life.kept_output import KeptOutput
from rayguard.runner.life.signals import Signals, StoppedError
from rayguard.runner.life.streams import open_all
from rayguard.runner.machine import NoStart, Relaunch, RunFailed, RunPolicy, RunState, handle, progressed
from rayguard.runner.serving.address import is_known_server
from rayguard.runner.serving.patience import ServingPatience
from rayguard.runner.serving.server_watch import ServerWatch
from rayguard.runner.summary import LifeSummary, RunSummary
from rayguard.runner.told import ToldFailures

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.runner.life.child import Life
    from rayguard.runner.plan import RunPlan
    from rayguard.runner.resume import FindsGood, Start

_LAST_WORDS_BYTES = 1 << 20
_TARGET_CHARS = 120
_NO_READER = "nobody reads its output any more"
_NO_SECONDS = 60.0  # from here on in minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a command is run. ``may_repeat``: also where nobody knows what it overwrites."""

    policy: RunPolicy = field(default_factory=RunPolicy)
    may_repeat: bool = False
    plugin: bool = True
    grace_s: float = 30.0
    look_s: float = 600.0  # for checkpoints
    watch: ServingPatience | None = field(default_factory=ServingPatience)  # of a server; None: not at all


@dataclass(frozen=True, slots=True, kw_only=True)
class _Next:
    """How the command is started next, and what of its settings is new for that."""

    start: Start
    changed: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Lived:
    """One life of the command, and what it came to."""

    began_as: _Next
    began_at: float
    life: Life
    kept_at: float  # what was worked since is lost, if it goes on from a checkpoint
    ended_at: float
    failure: RunFailure | None = None


class Run:
    """One run. ``say`` gets what a person should know, as it happens."""

    def __init__(
        self, plan: RunPlan, options: RunOptions, find: FindsGood, say: Callable[[str], None]
    ) -> None:
        self._plan, self._options, self._find, self._say = plan, options, find, say
        self._state = RunState(furthest=self._furthest())
        self._lives: list[_Lived] = []
        patience = options.watch if options.policy.serves else None
        self._watch = None if patience is None else ServerWatch(plan.command, patience, say)
        self._told = ToldFailures(redacted(f"rayguard run {' '.join(plan.command.words)}")[:_TARGET_CHARS])

    def run(self) -> RunSummary:
        """Run it to its end."""
        open_all()
        coming: _Next | None = _Next(start=resume.Start(command=self._plan.command))
        try:
            with Signals() as signals:
                while coming is not None:
                    kept = KeptOutput()
                    try:
                        coming, why = self._lived(coming, kept, signals)
                    finally:
                        kept.close()
        except StoppedError as stopped:
            why = "a signal came before it was started again"
            self._told.ended(Outcome.FAILED, why)
            return self._summary(128 + stopped.number, why)
        return self._summary(self._lives[-1].life.ending.code, why)

    def _lived(self, now: _Next, kept: KeptOutput, signals: Signals) -> tuple[_Next | None, str]:
        """Run the command once; return how it is started next, or None and why not."""
        command = now.start.command
        hooks = self._plan.dialect is not None or is_known_server(command.words)
        environment, plugin_off = environment_of(command, plugin=self._options.plugin, hooks=hooks)
        if plugin_off and not self._lives and self._plan.on_ray:
            self._say(f"rayguard's plugin is off in it: {plugin_off}")
        before, began_at = Machine().read(), time.time()
        options = self._options
        manner = Manner(
            grace_s=options.grace_s, must_stay=options.policy.serves, say=self._say, watch=self._watch
        )
        life = live(command, environment, kept, signals, manner)
        lived = _Lived(
            began_as=now, began_at=began_at, life=life, kept_at=self._kept_at(began_at), ended_at=time.time()
        )
        self._lives.append(lived)
        if life.left:
            self._say(f"processes of the command still run: {', '.join(map(str, life.left))}")
        if life.error:
            self._say(life.error)
            return None, life.error
        if life.reader_gone:
            self._told.ended(Outcome.FAILED, _NO_READER)
            return None, _NO_READER
        if life.stopped is not None:
            self._told.ended(Outcome.FAILED, "stopped by its user before it was seen whether it got further")
            return None, "a signal to rayguard ended it"
        if life.ending.returncode == 0 and not self._options.policy.serves:
            self._told.ended(Outcome.RECOVERED)
            return None, ""
        around = Circumstances(
            ending=life.ending if life.found is None else Ending(1),  # by our own signal
            began_at=began_at,
            pid=life.pid,
            last_words=kept.last(_LAST_WORDS_BYTES),
            before=before,
        )
        lived.failure = RunFailure(diagnosis=unknown(()))
        with harmless("diagnosis of a run"):
            log = kept.log()
            lived.failure = failure_of([log] if log is not None else [], around)
        if life.found is not None:
            said = lived.failure
            lived.failure = replace(said, diagnosis=life.found.diagnosis(said.diagnosis))
        return self._failed(lived, lived.failure)

    def _failed(self, lived: _Lived, failure: RunFailure) -> tuple[_Next | None, str]:
        life, policy = lived.life, self._options.policy
        event = RunFailed(
            diagnosis=failure.diagnosis,
            ending=life.ending,
            now=lived.ended_at,
            lasted_s=life.lasted_s,
            corrections=self._plan.corrections(failure.diagnosis, self._state.made),
            furthest=self._furthest(),
            refused=failure.refused,
            by_us=life.found is not None,
        )
        self._told.ended(Outcome.RECOVERED if progressed(self._state, event, policy) else Outcome.FAILED)
        self._told.failed(failure, life.pid)
        self._say(f"{_ended(life)} after {duration(life.lasted_s)}: {failure.cause}")
        self._state, action = handle(self._state, event, policy)
        if isinstance(action, Relaunch):
            start = self._start(life)
            if isinstance(start, resume.Start):
                return self._coming(action, start), ""
            self._state, action = handle(self._state, start, policy)
        assert not isinstance(action, Relaunch)
        self._told.ended(Outcome.FAILED, action.why)
        return None, action.why

    def _start(self, life: Life) -> Start | NoStart:
        nothing = self._options.may_repeat or self._options.policy.serves
        try:
            return self._plan.goes_on(
                self._state.made,
                self._find,
                within_s=self._options.look_s,
                made_nothing=nothing or life.lasted_s < self._options.policy.quick_s,
            )
        except (ConfigError, OSError) as error:
            return NoStart(f"how it goes on cannot be told: {error}")

    def _coming(self, action: Relaunch, start: Start) -> _Next:
        changed = () if action.added is None else self._plan.changed(self._state.made).written
        for note in start.notes:
            self._say(note)
        waits = f" in {action.wait_s:.0f} s" if action.wait_s else ""
        budget = self._options.policy.budget
        times = f"{len(self._state.restarts)} of {budget.max_restarts}"
        settings = f", with {' '.join(changed)}" if changed else ", with the same settings"
        place = f", from {start.checkpoint}" if start.checkpoint else ""
        self._say(f"started again{waits} ({times}){settings}{place}: {action.why}")
        if self._options.policy.serves:
            self._say("it comes back with the weights of its own checkpoint: its trainer must push again")
        if action.wait_s:
            threading.Event().wait(action.wait_s)
        self._told.relaunched("" if action.added is None else action.added.name, changed)
        return _Next(start=start, changed=changed)

    def _furthest(self) -> int | None:
        return resume.furthest(resume.own(self._plan.place, self._plan.before))

    def _kept_at(self, began_at: float) -> float:
        """Return when what is kept of this life was worked: at its last checkpoint, else when it began."""
        made = resume.own(self._plan.place, self._plan.before).values()
        return max(began_at, max(made, default=0) / 1e9)

    def _summary(self, code: int, why: str) -> RunSummary:
        ends = [one.began_at for one in self._lives[1:]] + [time.time()]
        lives = tuple(_summary_of(one, end) for one, end in zip(self._lives, ends, strict=True))
        last = self._lives[-1].failure if self._lives else None
        return RunSummary(
            code=code,
            lives=lives,
            framework="" if self._plan.dialect is None else self._plan.dialect.name,
            why=why,
            advice=last.diagnosis.advice if last is not None and code else "",
        )


def _summary_of(lived: _Lived, until: float) -> LifeSummary:
    failure, life = lived.failure, lived.life
    start = lived.began_as.start
    return LifeSummary(
        words=start.command.words,
        code=life.ending.code,
        lasted_s=life.lasted_s,
        ended=_ended(life),
        kind="" if failure is None else failure.diagnosis.kind.value,
        signature="" if failure is None else failure.diagnosis.signature,
        cause="" if failure is None else failure.cause,
        evidence=() if failure is None else tuple(redacted(one.quote) for one in failure.evidence),
        checkpoint=str(start.checkpoint or ""),
        changed=lived.began_as.changed,
        lost_s=0.0 if failure is None else max(0.0, until - lived.kept_at),
    )


def _ended(life: Life) -> str:
    return str(life.ending) if life.found is None else "was ended by rayguard"


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < _NO_SECONDS:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
