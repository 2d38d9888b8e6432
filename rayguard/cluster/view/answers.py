"""From what Ray, agents and supervisors answered (``rayguard.cluster.view.survey``) to what the screens show.

Pure. The answers come from other versions of rayguard too, so nothing in them is taken for granted: what is
missing is unknown, and the rest is shown all the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rayguard.cluster.supervisor.stories import Story, stories_of
from rayguard.cluster.view import cluster_view as views
from rayguard.cluster.view.cluster_view import Answers, NodeState
from rayguard.recovery.incident import Incident
from rayguard.recovery.tail import folded
from rayguard.recovery.tally import EngineTally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Answer = Mapping[str, Any]

_IDLE = ("", "IDLE")
_LATEST = 200  # incidents of a screen


def view(answers: Answer, *, address: str = "", notes: Iterable[str] = ()) -> views.ClusterView:
    """Return what ``answers`` say of the cluster."""
    at = float(answers.get("at") or 0.0)
    processes = tuple(_processes(answers))
    nodes = tuple(sorted(_nodes(answers, processes, at), key=_trouble))
    incidents = incidents_in(answers)
    stories = _stories(answers, incidents)
    return views.ClusterView(
        at=at,
        address=address,
        nodes=nodes,
        processes=processes,
        jobs=tuple(_jobs(answers, stories)),
        stories=stories,
        incidents=incidents[-_LATEST:],
        notes=(*notes, *(f"not known: {error}" for error in answers.get("errors", ())), *_off(answers)),
    )


def _off(answers: Answer) -> Iterator[str]:
    """Yield what Ray's changes have switched off in living processes: once for all that say the same."""
    agents = answers.get("agents", {}).values()
    pages = [page for said in agents for page in said.get("pages") or () if page.get("alive") is not False]
    off = Counter(item for page in pages for item in (page.get("off") or {}).items())
    yield from (f"{name}: off, {why} ({count} processes)" for (name, why), count in off.items())


def incidents_in(answers: Answer) -> tuple[Incident, ...]:
    """Return the incidents of all nodes that answered, each once, oldest first."""
    rows = (row for said in answers.get("agents", {}).values() for row in said.get("incidents") or ())
    return tuple(folded(one for row in rows if (one := _incident(row)) is not None))


def unanswered(answers: Answer) -> tuple[str, ...]:
    """Return, for each node whose incidents are missing in the answers, its name and why."""
    found = []
    for node in answers.get("nodes", ()):
        said = answers.get("agents", {}).get(node["id"])
        if node.get("alive") and "incidents" not in (said or {}):
            why = "has no agent (rayguard up)" if said is None else said.get("error") or "did not answer"
            found.append(f"{node.get('host') or node['id'][:8]} {why}")
    return tuple(found)


def _nodes(answers: Answer, processes: Iterable[views.ProcessView], at: float) -> Iterator[views.NodeView]:
    draining, quarantined = answers.get("draining", {}), dict(answers.get("quarantined", {}))
    there: dict[str, list[views.ProcessView]] = defaultdict(list)
    for process in processes:
        there[process.node].append(process)
    for said in answers.get("supervisors", {}).values():
        quarantined |= (said.get("state") or {}).get("quarantined") or {}
    for row in answers.get("nodes", ()):
        one = row["id"]
        answer = answers.get("agents", {}).get(one)
        found = (answer or {}).get("readings") or {}
        line = {**answers.get("told", {}).get(one, {}), **found}
        quarantine = quarantined.get(one) or {}
        state, why = NodeState.ALIVE, ""
        if not row.get("alive"):
            state, why = NodeState.DEAD, str(row.get("why") or "")
        elif float(quarantine.get("until") or 0.0) > at:
            state, why = NodeState.QUARANTINED, str(quarantine.get("why") or "")
        elif one in draining:
            state, why = NodeState.DRAINING, _deadline(draining[one], at)
        agent = Answers.MISSING if answer is None else Answers.UP if found else Answers.SILENT
        working = there[one]
        yield views.NodeView(
            id=one,
            host=str(row.get("host") or row.get("address") or one[:8]),
            address=str(row.get("address") or ""),
            head=bool(row.get("head")),
            state=state,
            agent=Answers.NONE if state is NodeState.DEAD else agent,
            why=why or (str((answer or {}).get("error") or "") if agent is Answers.SILENT else ""),
            version=str(line.get("version") or ""),
            url=str(line.get("url") or ""),
            plugin=line.get("plugin"),
            memory=_full(found.get("memory")),
            store=_full(found.get("store")),
            shm=_full(found.get("shm")),
            device=_together(found.get("devices") or ()),
            stalled_ratio=found.get("stalled_ratio"),
            processes=len(working),
            stopped=sum(each.stopped for each in working),
        )


def _deadline(deadline_ms: Any, at: float) -> str:
    return f"{max(0.0, deadline_ms / 1000 - at):.0f} s left" if deadline_ms else ""


def _full(said: Any) -> views.Full | None:
    known = said and said.get("limit")
    return views.Full(used=int(said["used"]), limit=int(said["limit"])) if known else None


def _together(devices: Iterable[Answer]) -> views.Full | None:
    found = [one for one in map(_full, devices) if one is not None]
    return (
        views.Full(used=sum(one.used for one in found), limit=sum(one.limit for one in found))
        if found
        else None
    )


def _trouble(node: views.NodeView) -> tuple[Any, ...]:
    """Order nodes: those that need somebody first, the dead last, and else so that rows do not jump."""
    order = [NodeState.QUARANTINED, NodeState.DRAINING, NodeState.ALIVE, NodeState.DEAD].index(node.state)
    return (order, node.fine, not node.head, node.host, node.id)


def _processes(answers: Answer) -> Iterator[views.ProcessView]:
    lives = {(node, pid): (actor, restarts) for node, pid, actor, restarts in answers.get("actors", ())}
    own = {(line.get("node_id"), line.get("pid")) for line in answers.get("own", {}).values()}
    for node, said in answers.get("agents", {}).items():
        pages = {int(page["pid"]): page for page in said.get("pages") or () if page.get("alive") is not False}
        workers = {int(one["pid"]): one for one in (said.get("readings") or {}).get("workers") or ()}
        for pid in {**workers, **pages}:  # a driver has a page, and is no worker
            worker, page = workers.get(pid, {}), pages.get(pid)
            idle = worker.get("target") in _IDLE if worker else not (page or {}).get("alive")
            if not idle and (node, pid) not in own:
                yield _process(node, pid, worker, page, lives.get((node, pid)))


def _process(
    node: str, pid: int, worker: Answer, page: Answer | None, life: tuple[str, int] | None
) -> views.ProcessView:
    who = (page or {}).get("who") or {}
    name = str(who.get("actor_class") or worker.get("target") or "process")
    actor = life[0] if life else worker.get("actor_id") or who.get("actor_id") or ""
    ours, watched = page is not None or bool(worker.get("guarded")), bool(who.get("watched"))
    return views.ProcessView(
        node=node,
        pid=pid,
        name=name,
        job_id=str(worker.get("job_id") or who.get("job_id") or ""),
        actor_id=str(actor),
        guarded=ours and not watched,
        watched=ours and watched,
        stopped=worker.get("state") == "T",
        restarts=life[1] if life else int(who.get("incarnation") or 0) if page else None,
        memory_bytes=int(worker["private_bytes"]) if "private_bytes" in worker else None,
        engines=tuple(_engine(node, pid, name, row) for row in (page or {}).get("engines") or ()),
        last_incident=str((page or {}).get("last_incident") or ""),
    )


def _engine(node: str, pid: int, actor_class: str, row: Answer) -> views.EngineView:
    values = _known(EngineTally, row)
    values["settings"] = tuple(values.get("settings") or ())
    return views.EngineView(node=node, pid=pid, actor_class=actor_class, **values)


def _known(shape: type[EngineTally | Story], row: Answer) -> dict[str, Any]:
    names = {one.name for one in fields(shape)}
    return {key: value for key, value in row.items() if key in names}


def _jobs(answers: Answer, stories: Iterable[Story]) -> Iterator[views.JobView]:
    rows = {row["id"]: row for row in answers.get("jobs", ())}
    supervisors = answers.get("supervisors", {})
    for job in {**rows, **supervisors}:
        row, said = rows.get(job, {"running": True}), supervisors.get(job)
        state = (said or {}).get("state") or {}
        here = Answers.UP if state else Answers.SILENT if said is not None else Answers.MISSING
        unfinished = sum(one.open for one in stories if one.job_id == job)
        if not row["running"] and said is None and not unfinished:
            continue
        yield views.JobView(
            id=job,
            entrypoint=str(row.get("entrypoint") or ""),
            running=bool(row["running"]),
            plugin=bool(row.get("plugin")),
            supervisor=Answers.NONE if not row["running"] and said is None else here,
            budget_left=state.get("budget_left"),
            open_stories=unfinished,
            crash_loops=tuple(map(str, state.get("crash_loops") or ())),
            actors=dict(state.get("actors") or {}),
        )


def _stories(answers: Answer, incidents: Iterable[Incident]) -> tuple[Story, ...]:
    """Return the stories as the supervisors tell them, and of jobs without one as their incidents do."""
    found: dict[str, Story] = {}
    supervised = set()
    for job, said in answers.get("supervisors", {}).items():
        if said.get("state"):
            supervised.add(job)
            rows = ({"job_id": job, **row} for row in said["state"].get("stories") or ())
            found |= {one.id: one for row in rows if (one := _story(row)) is not None}
    for story in stories_of(one for one in incidents if one.job_id not in supervised):
        found.setdefault(story.id, story)
    return tuple(sorted(found.values(), key=lambda one: (one.began_at, one.id)))


def _story(row: Answer) -> Story | None:
    try:
        return Story(**{**_known(Story, row), "incidents": tuple(row.get("incidents") or ())})
    except TypeError:  # of a version that tells them otherwise
        return None


def _incident(row: Answer) -> Incident | None:
    try:
        return Incident.from_json(dict(row))
    except (TypeError, ValueError):
        return None
