"""The deaths of a node's Ray workers: noticed, explained, and told once, by whoever knows most.

A death is heard of twice: from the kernel in milliseconds (with its exit code), and from Ray (with its word
on it). What it is and who tells is decided in ``death_verdict``. Nothing is ended here but processes that a
dead worker of ours left behind and that hide its death from Ray.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from rayguard.actors.life import incidents
from rayguard.actors.life.postmortem import told_by_next_life
from rayguard.cluster.agent import death_verdict
from rayguard.cluster.agent.death_verdict import Death, DeathVerdict
from rayguard.harmless import harmless
from rayguard.metrics.instruments.node import Whose
from rayguard.process.deaths import DeathWatch
from rayguard.process.identity import ProcessId
from rayguard.process.tree import end
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.tally import MAX_JOBS

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.cluster.agent.death_verdict import Around
    from rayguard.cluster.agent.jobs_here import JobsHere
    from rayguard.cluster.agent.journal_feed import KnownIncidents
    from rayguard.cluster.agent.worker_table import Worker, WorkerTable
    from rayguard.ray_internals.cluster_state import ClusterOfAgent

_log = logging.getLogger("rayguard")

SETTLED_S = 0.3  # in which Ray and the journal get what the death left
UNHEARD_S = 3.0  # after which Ray, or its word, is taken to be missing
LOOK_S = 0.5  # while a death is open
_FORCE_S = 1.0
_MAX_OPEN = 1_000
_TRIES = 3  # to understand a death: a disk or Ray that fails once does not hide it


class Deaths:
    """Open deaths, and how many there were by kind. ``tell`` writes an incident (``death_incident``).

    ``around`` says how the node was seen last; asked when a death is noticed, since what the kernel counts of
    its kills is compared with it.
    """

    def __init__(
        self,
        cluster: ClusterOfAgent,
        table: WorkerTable,
        known: KnownIncidents,
        tell: Callable[[Death], Incident],
        around: Callable[[], Around],
        jobs: JobsHere,
    ) -> None:
        self.counts: Counter[Whose] = Counter()
        self.news: Callable[[], None] = lambda: None  # called when there is something to look at
        self._cluster, self._table, self._known, self._tell = cluster, table, known, tell
        self._around, self._jobs = around, jobs
        self._watch = DeathWatch("rayguard-agent-deaths")
        self._lock = threading.Lock()  # guards the next three: looks, the kernel and Ray each have a thread
        self._workers: dict[ProcessId, Worker] = {}  # that live, or whose death is not understood yet
        self._open: dict[ProcessId, Death] = {}
        self._reported: list[tuple[str, float]] = []
        self._done: dict[str, None] = {}  # worker ids, oldest first
        self._told_to_go: dict[ProcessId, tuple[str, float]] = {}  # job and when, oldest first

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
            deaths = list(self._open.values())
        for death in deaths:
            # A clock that was set back makes nobody wait.
            death.noticed_at = min(death.noticed_at, time.time())
            if time.time() - death.noticed_at < SETTLED_S:
                continue
            death.failures += 1
            done = death.failures >= _TRIES
            with harmless("agent_deaths"):
                done = self._decided(death)
                death.failures = 0
            if done:
                with self._lock:
                    self._open.pop(death.process, None)
                    self._workers.pop(death.process, None)

    def _add(self, process: ProcessId, at: float) -> Death | None:
        with self._lock:
            if process in self._open:
                return self._open[process]
            if len(self._open) >= _MAX_OPEN:
                self._workers.pop(process, None)
                return None
            worker, around = self._workers.get(process), self._around()
            death = Death(process=process, noticed_at=at, worker=worker, around=around)
            self._open[process] = death
            return death

    def _take_word(self, worker_id: str, at: float) -> None:
        word = None if worker_id in self._done else self._cluster.worker(worker_id)
        if word is None:
            return
        with self._lock:
            known = next((one for one in (*self._open, *self._workers) if one.pid == word.pid), None)
        death = self._add(known or ProcessId(word.pid, 0), at)
        if death is not None:
            death.word = word

    def _decided(self, death: Death) -> bool:
        """Do what there is to do about a death; say whether that was all."""
        now = time.time()
        self._ask(death, now)
        verdict = death_verdict.judge(death, now)
        if verdict is DeathVerdict.WAIT:
            self._look_for_forks(death, now)
            return False
        if death.word is not None:
            self._done[death.word.worker_id] = None
            while len(self._done) > _MAX_OPEN:
                del self._done[next(iter(self._done))]
        if death.hints_at_job_end:
            self._jobs.changed(death.job_id)
        if verdict is DeathVerdict.NORMAL:
            return True
        mine = self._known.of(death.pid)
        if verdict is DeathVerdict.TELL:
            kind = self._tell(death).kind
        else:
            of_it = (one.kind for one in reversed(mine) if death_verdict.of_this_death(one, death))
            kind = next(of_it, death.told_as)
        self._count(Whose(kind, death.target or death_verdict.IDLE, death.job_id))
        if not death.comes_back:
            self._close(mine, death)
        return True

    def _count(self, whose: Whose) -> None:
        """Count a death, and let the job go that had its first one longest ago, where there are too many."""
        self.counts[whose] += 1
        jobs = list(dict.fromkeys(one.ray_job for one in self.counts))
        if len(jobs) > MAX_JOBS:
            self.counts = Counter({one: n for one, n in self.counts.items() if one.ray_job != jobs[0]})

    def _close(self, mine: list[Incident], death: Death) -> None:
        """Close what was open in a process that nobody follows: no next life will."""
        for one in mine:
            if death_verdict.left_open(one, death) and not one.signature.startswith("agent."):
                incidents.record(incidents.closed(one, Outcome.FAILED))

    def _ask(self, death: Death, now: float) -> None:
        """Get what is missing of Ray's word, the actor's present state, and what is told of the death."""
        self._ask_ray(death, now)
        of_kernel = death.process.exitcode() if death.process.started else None
        death.exitcode = death_verdict.exitcode_of(death.word, of_kernel)
        death.target = death_verdict.DRIVER if death.driver else self._did(death)
        if death.told_to_go:
            death.job_killed = death.job_killed or self._was_killed(death)
        in_journal = any(death_verdict.of_this_death(one, death) for one in self._known.of(death.pid))
        if death.comes_back and not in_journal and not death.told_as:  # on whichever node that is
            death.told_as = told_by_next_life(death.actor_id, death.pid)
        death.recorded = in_journal or bool(death.told_as)

    def _ask_ray(self, death: Death, now: float) -> None:
        if death.word is None or death.word.alive:
            worker_id = death.word.worker_id if death.word else ""
            if not worker_id and now - death.noticed_at >= UNHEARD_S:
                worker_id = self._cluster.worker_id_of(death.pid)
            death.word = self._cluster.worker(worker_id) if worker_id else None
        if death.word is None or death.word.kind.startswith("INTENDED"):
            return
        job = self._jobs.of(death.job_id) if death.job_id else None
        if job is not None:
            death.job_over_at, death.of_rayguard = job.ended_at, job.ours
        if not death.asked:
            death.actor = self._cluster.actor_in(death.word.worker_id, death.word.job_id)
            death.asked = True
        elif death.actor is not None:
            death.actor = self._cluster.actor(death.actor.actor_id) or death.actor

    def _was_killed(self, death: Death) -> bool:
        """Say whether the whole job of a worker that was told to go was ended from outside."""
        self._told_to_go[death.process] = death.job_id, death.at
        while len(self._told_to_go) > _MAX_OPEN:
            del self._told_to_go[next(iter(self._told_to_go))]
        near = [at for job, at in self._told_to_go.values() if job == death.job_id]
        if sum(abs(at - death.at) < death_verdict.JOB_ENDS_S for at in near) > 1:
            return True
        driver = self._jobs.of(death.job_id).driver if death.job_over_at else ""
        row = self._cluster.worker(driver) if driver else None
        return row is not None and bool(row.kind) and not row.kind.startswith("INTENDED")

    def _did(self, death: Death) -> str:
        """Return the class of an actor, or the task that ran: as its log says last, else as it was called."""
        if death.actor is not None and death.actor.class_name:
            return death.actor.class_name
        task = self._cluster.last_task_of(death.word.worker_id, death.pid) if death.word is not None else ""
        return task or ("" if death.worker is None or death.worker.idle else death.worker.target)

    def _look_for_forks(self, death: Death, now: float) -> None:
        """Find what hides a death from Ray: forked children that hold the dead worker's connection."""
        unseen = death.word is None or death.word.alive
        if death.forks or death.worker is None or not unseen or now - death.noticed_at < UNHEARD_S:
            return
        forks = self._table.forks_of(death.process, death.worker.layout) if death.worker.leads else []
        if not forks:
            return
        death.forks = tuple(one.pid for one in forks)
        pids = ", ".join(map(str, death.forks))
        note = f"its forked children {pids} hold its connection: Ray takes it for alive"
        if death.worker.marked:
            left = end(forks, polite_s=0.0, force_s=_FORCE_S)
            note += f"; {len(forks) - len(left)} of them were ended"
        else:
            note += " until they end; they are left alone, since rayguard does not run in it"
        death.notes.append(note)
        _log.warning("rayguard: worker %d is dead, and %s", death.pid, note)
