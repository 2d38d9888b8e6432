"""A cluster that nobody runs: what its nodes, agents and supervisors would answer, as large as one likes."""

GIB = 1 << 30
AT = 1_800_000_000.0


def node_id(number):
    return f"{number:04x}" * 14


def a_node(number, **more):
    return {
        "id": node_id(number),
        "alive": True,
        "host": f"gpu-{number:03}",
        "address": f"10.0.0.{number}",
        "head": number == 0,
        "why": "",
        **more,
    }


def a_worker(pid, name="Rollout", job="01000000", **more):
    return {
        "pid": pid,
        "target": name,
        "title": f"{name}.generate",
        "job_id": job,
        "actor_id": f"{pid:032x}",
        "state": "S",
        "private_bytes": 2 * GIB + pid,
        "guarded": True,
        **more,
    }


def a_page(pid, name="Rollout", job="01000000", engines=(), **who):
    return {
        "pid": pid,
        "started": 7,
        "alive": True,
        "who": {"actor_class": name, "actor_id": f"{pid:032x}", "job_id": job, "incarnation": 0, **who},
        "engines": list(engines),
        "last_incident": "",
    }


def an_engine(name="llm", **more):
    return {
        "name": name,
        "epoch": 1,
        "rung": 0,
        "settings": [],
        "serving": True,
        "weight_version": "17",
        "requests_running": 8,
        "tokens_generated": 123_456,
        "restarts": 0,
        **more,
    }


def readings(workers=(), used=0.4, **more):
    full = {"name": "", "used": int(used * 64 * GIB), "limit": 64 * GIB}
    return {
        "memory": full,
        "stalled_ratio": 0.0,
        "shm": {"name": "", "used": 1 * GIB, "limit": 32 * GIB},
        "store": {"name": "", "used": 3 * GIB, "limit": 20 * GIB},
        "devices": [{"name": "0", "used": 70 * GIB, "limit": 80 * GIB}],
        "version": "0.5.0",
        "url": "http://127.0.0.1:44317/metrics",
        "workers": list(workers),
        **more,
    }


def an_incident(number, **more):
    return {
        "id": f"{number:012x}",
        "kind": "host_oom",
        "scope": "process",
        "cause": f"the kernel killed process {number}",
        "target": "Rollout",
        "job_id": "01000000",
        "actor_id": f"{number:032x}",
        "detected_at": AT - 600 + number,
        "outcome": "recovered",
        "closed_at": AT - 500 + number,
        "remedy": "restart_actor",
        **more,
    }


def a_story(number=1, **more):
    return {
        "id": f"{number:012x}",
        "kind": "gpu_hardware",
        "scope": "node",
        "cause": "GPU 3 fell off the bus (Xid 79)",
        "sentence": "gpu-003 (8 actors): GPU 3 fell off the bus (Xid 79); restart_actor x8; open",
        "began_at": AT - 60,
        "ended_at": None,
        "node": node_id(3),
        "actors": 8,
        "incidents": [f"{number:012x}"],
        **more,
    }


def answers(nodes=2, actors=4, **more):
    """Return what a healthy cluster says: ``actors`` over all nodes, the first four classes of them with engines."""
    rows = [a_node(number) for number in range(nodes)]
    agents = {}
    for number in range(nodes):
        pids = range(1000 + number, 1000 + actors, nodes)
        workers = [a_worker(pid, f"Worker{pid % 7}") for pid in pids]
        engines = {pid: [an_engine(f"llm-{pid}")] for pid in pids if pid % 7 < 2}
        agents[node_id(number)] = {
            "readings": readings(workers, used=0.3 + 0.4 * number / nodes),
            "pages": [a_page(pid, f"Worker{pid % 7}", engines=engines.get(pid, ())) for pid in pids],
            "incidents": [],
        }
    job = {"id": "01000000", "entrypoint": "python train.py --steps 100", "running": True, "plugin": True}
    state = {
        "budget_left": 0.85,
        "stories": [],
        "crash_loops": {},
        "actors": {"alive": actors},
        "quarantined": {},
    }
    return {
        "at": AT,
        "nodes": rows,
        "draining": {},
        "quarantined": {},
        "told": {},
        "agents": agents,
        "jobs": [job],
        "supervisors": {"01000000": {"state": state}},
        "errors": [],
        **more,
    }


def troubled(nodes=4, actors=12):
    """Return what a cluster says in which everything goes wrong that can be shown."""
    said = answers(nodes, actors)
    ids = [row["id"] for row in said["nodes"]]
    said["quarantined"] = {ids[1]: {"until": AT + 900, "why": "3 faults of this node within 15 min"}}
    said["draining"] = {ids[2]: int((AT + 42) * 1000)}
    said["nodes"].append(a_node(200, alive=False, why="health check failed"))
    said["nodes"].append(a_node(201))
    said["nodes"].append(a_node(202))
    said["agents"][node_id(202)] = {"error": "no answer within 5 s"}
    first = said["agents"][ids[0]]
    first["readings"]["workers"][0]["state"] = "T"
    first["readings"]["stalled_ratio"] = 0.31
    first["readings"]["memory"]["used"] = 61 * GIB
    for page in first["pages"]:
        page["who"]["incarnation"] = 3
        for engine in page["engines"]:
            engine |= {"serving": False, "restarts": 2, "rung": 1, "settings": ["chunked_prefill_off"]}
    first["incidents"] = [an_incident(number) for number in range(5)]
    first["incidents"].append(
        an_incident(9, outcome="open", closed_at=None, remedy="", cause="bad\x1b[31m \u202ered")
    )
    state = said["supervisors"]["01000000"]["state"]
    state |= {
        "budget_left": 0.1,
        "stories": [a_story(), a_story(2, ended_at=AT - 1)],
        "crash_loops": {"ab" * 16: "1"},
    }
    said["jobs"].append({"id": "02000000", "entrypoint": "python eval.py", "running": True, "plugin": False})
    said["jobs"].append({"id": "03000000", "entrypoint": "python old.py", "running": False, "plugin": False})
    said["errors"] = ["jobs: RpcError: deadline"]
    return said
