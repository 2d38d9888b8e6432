"""The deaths of a node's Ray workers: noticed, explained, and told once, by whoever knows most.

A death is heard of twice: from the kernel in milliseconds (with its exit code), and from Ray (with its word
on it). What it is and who tells is decided in ``death_story``. Nothing is ended here but processes that a
dead worker of ours left behind and that hide its death from Ray (``_free``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rayguard.actors import records
from rayguard.actors.postmortem import told_by_next_life
from rayguard.cluster.death_story import (
    ActorFacts,
    Death,
    RaysWord,
    Verdict,
    exitcode_of,
    judge,
    left_open,
    of_this_death,
)
from rayguard.process.deaths import DeathWatch
from rayguard.process.identity import ProcessId
from rayguard.process.tree import end
from rayguard.recovery.harmless import harmless
from rayguard.recovery.incident import Incident, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.cluster.agent_ray import ClusterOfAgent
    from rayguard.cluster.agent_told import Known
    from rayguard.cluster.death_report import Around
    from rayguard.cluster.roster import Roster, Worker

_log = logging.getLogger("rayguard")

SETTLED_S = 0.3  # in which Ray and the journal get what the death left
UNHEARD_S = 3.0  # after which Ray, or its word, is taken to be missing
LOOK_S = 0.5  # while a death is open
_FORCE_S = 1.0
_MAX_OPEN = 1_000
_TRIES = 3  # to understand a death: a disk or Ray that fails once does not hide it


@dataclass(slots=True)
class _Case:
    """One death until it is told or known to be none of our business."""

    process: ProcessId
    noticed_at: float  # wall clock
    worker: Worker | None = None
    word: RaysWord | None = None
    actor: ActorFacts | None = None
    asked: bool = False  # whose process it was
    forks: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    around: Around = (0.0, None)  # the node as it was seen last before
    told_as: str = ""  # the kind that the next life found
    failures: int = 0  # to understand it


class Deaths:
    """Open deaths, and how many there were by kind. ``tell`` writes an incident (``death_report``).

    ``around`` says how the node was seen last; asked when a death is noticed, since what the kernel counts of
    its kills is compared with it.
    """

    def __init__(
        self,
        cluster: ClusterOfAgent,
        roster: Roster,
        known: Known,
        tell: Callable[[Death, ProcessId, Around, tuple[str, ...]], Incident],
        around: Callable[[], Around],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.news: Callable[[], None] = lambda: None  # called when there is something to look at
        self._cluster, self._roster, self._known, self._tell = cluster, roster, known, tell
        self._around = around
        self._watch = DeathWatch("rayguard-agent-deaths")
        self._lock = threading.Lock()  # guards the next three: looks, the kernel and Ray each have a thread
        self._workers: dict[ProcessId, Worker] = {}  # that live, or whose death is not understood yet
        self._open: dict[ProcessId, _Case] = {}
        self._reported: list[tuple[str, float]] = []
        self._done: dict[str, None] = {}  # worker ids, oldest first

    def watch(self, workers: dict[ProcessId, Worker]) -> None:
        """Watch these from now on; what is no more among them has ended or will be told of by the kernel."""
        with self._lock:  # before they are watched: of one that is dead already the kernel tells at once
            new = [process for process in workers if process not in self._workers]
            self._workers.update(workers)
        for process in new:
            self._watch.watch(process, self.ended)

    def watched(self) -> list[Worker]:
        """Return the workers that live, and those whose death is not understood yet."""
        with self._lock:
            return list(self._workers.values())

    def ended(self, process: ProcessId) -> None:
        """Take the kernel's word that a worker ended."""
        self._add(process, time.time())
        self.news()

    def reported(self, worker_id: str) -> None:
        """Take Ray's word that a worker ended."""
        with self._lock:
            self._reported.append((worker_id, time.time()))
        self.news()

    @property
    def pending(self) -> bool:
        """Say whether a death waits for what decides it."""
        with self._lock:
            return bool(self._open or self._reported)

    def close(self) -> None:
        """Watch no longer."""
        self._watch.close()

    def look(self) -> None:
        """Decide what can be decided. One death that cannot be understood does not hold up the others."""
        if not self.pending:
            return
        with self._lock:
            reported, self._reported = self._reported, []
        for worker_id, at in reported:
            with harmless("agent_deaths"):
                self._take_word(worker_id, at)
        self._known.refresh()
        with self._lock:
            cases = list(self._open.values())
        for case in cases:
            case.noticed_at = min(case.noticed_at, time.time())  # a clock that was set back makes nobody wait
            if time.time() - case.noticed_at < SETTLED_S:
                continue
            case.failures += 1
            done = case.failures >= _TRIES
            with harmless("agent_deaths"):
                done = self._decided(case)
                case.failures = 0
            if done:
                with self._lock:
                    self._open.pop(case.process, None)
                    self._workers.pop(case.process, None)

    def _add(self, process: ProcessId, at: float) -> _Case | None:
        with self._lock:
            if process in self._open:
                return self._open[process]
            if len(self._open) >= _MAX_OPEN:
                self._workers.pop(process, None)
                return None
            case = _Case(process, at, worker=self._workers.get(process), around=self._around())
            self._open[process] = case
            return case

    def _take_word(self, worker_id: str, at: float) -> None:
        word = None if worker_id in self._done else self._cluster.worker(worker_id)
        if word is None:
            return
        with self._lock:
            known = next((one for one in (*self._open, *self._workers) if one.pid == word.pid), None)
        case = self._add(known or ProcessId(word.pid, 0), at)
        if case is not None:
            case.word = word

    def _decided(self, case: _Case) -> bool:
        """Do what there is to do about a death; say whether that was all."""
        now = time.time()
        self._ask(case, now)
        death = self._death(case)
        verdict = judge(death, now)
        if verdict is Verdict.WAIT:
            self._look_for_forks(case, now)
            return False
        if case.word is not None:
            self._done[case.word.worker_id] = None
            while len(self._done) > _MAX_OPEN:
                del self._done[next(iter(self._done))]
        if verdict is Verdict.NORMAL:
            return True
        mine = self._known.of(death.pid)
        if verdict is Verdict.TELL:
            kind = self._tell(death, case.process, case.around, tuple(case.notes)).kind
        else:
            kind = next((one.kind for one in reversed(mine) if self._of(one, death)), case.told_as)
        self.counts[kind] += 1
        if not death.comes_back:
            self._close(mine, death)
        return True

    def _ask(self, case: _Case, now: float) -> None:
        """Get what is missing of Ray's word, and the actor's present state."""
        pid = case.process.pid
        if case.word is None or case.word.alive:
            unheard = now - case.noticed_at >= UNHEARD_S
            worker_id = (
                case.word.worker_id if case.word else self._cluster.worker_id_of(pid) if unheard else ""
            )
            case.word = self._cluster.worker(worker_id) if worker_id else None
        if case.word is None or case.word.kind.startswith("INTENDED"):
            return
        if not case.asked:
            case.actor = self._cluster.actor_in(case.word.worker_id, case.word.job_id)
            case.asked = True
        elif case.actor is not None:
            case.actor = self._cluster.actor(case.actor.actor_id) or case.actor

    def _death(self, case: _Case) -> Death:
        worker, word = case.worker, case.word
        at = word.at if word is not None and word.at else case.noticed_at
        death = Death(
            pid=case.process.pid,
            noticed_at=case.noticed_at,
            at=at,
            word=word,
            actor=case.actor,
            exitcode=exitcode_of(word, case.process.exitcode() if case.process.started else None),
            idle=worker is not None and worker.idle,  # when it was last seen
            target=(case.actor.class_name if case.actor else "") or self._did(case),
            job_id=(word.job_id if word else "") or (worker.job_id if worker else ""),
        )
        told = any(self._of(one, death) for one in self._known.of(death.pid))
        return replace(death, told=told or self._told_elsewhere(case, death))

    def _told_elsewhere(self, case: _Case, death: Death) -> bool:
        """Say whether the next life, on whichever node, tells of this death."""
        if not case.told_as and death.actor is not None and death.comes_back:
            case.told_as = told_by_next_life(death.actor.actor_id, death.pid)
        return bool(case.told_as)

    def _did(self, case: _Case) -> str:
        """Return the task that a worker ran: what its log says last, else what it called itself."""
        if case.word is not None and (
            task := self._cluster.last_task_of(case.word.worker_id, case.process.pid)
        ):
            return task
        return "" if case.worker is None or case.worker.idle else case.worker.target

    def _of(self, incident: Incident, death: Death) -> bool:
        return of_this_death(incident, death.pid, death.actor.actor_id if death.actor else "", death.at)

    def _look_for_forks(self, case: _Case, now: float) -> None:
        """Find what hides a death from Ray: forked children that hold the dead worker's connection."""
        unseen = case.word is None or case.word.alive
        if case.forks or case.worker is None or not unseen or now - case.noticed_at < UNHEARD_S:
            return
        forks = self._roster.forks_of(case.process, case.worker.layout) if case.worker.leads else []
        if not forks:
            return
        case.forks = tuple(one.pid for one in forks)
        pids = ", ".join(map(str, case.forks))
        said = f"its forked children {pids} hold its connection: Ray takes it for alive"
        if case.worker.marked:
            left = end(forks, polite_s=0.0, force_s=_FORCE_S)
            said += f"; {len(forks) - len(left)} of them were ended"
        else:
            said += " until they end; they are left alone, since rayguard does not run in it"
        case.notes.append(said)
        _log.warning("rayguard: worker %d is dead, and %s", case.process.pid, said)

    def _close(self, mine: list[Incident], death: Death) -> None:
        """Close what was open in a process that nobody follows: no next life will."""
        actor_id = death.actor.actor_id if death.actor else ""
        for one in mine:
            if left_open(one, death.pid, actor_id, death.at) and not one.signature.startswith("agent."):
                records.record(records.closed(one, Outcome.FAILED))
