"""Rollouts on the real verl: ``python tests/frameworks/verl_rollouts/checks_rollouts.py``.

verl's own ``LLMServerClient``, ``FullyAsyncLLMServerClient``, load balancer and ``CheckpointEngineManager``; the
servers are small actors of our own, killed while they generate. Needs verl 0.9.1 and rayguard, no GPU. Prints a line
of JSON for each check. Run by its path: verl brings a package of its own that is called ``tests``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from importlib.metadata import version

from rollout_actors import EACH_S, STEP, TOKENS, WAIT_S, Rollouts, Standalone, manager

_ANSWER = f"from the kill to the last answer, of it {TOKENS * EACH_S:.1f} s of generation; small servers"
_PUSH = "the whole weight update after the kill; weights of no size"
_MADE = "from the kill until the new one was up, the longer of two; small servers, imports of Ray alone"
_VARIABLES = {"RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}


def ask(client, request, prompt=1, **settings):
    return client.generate(request, prompt_ids=[prompt], sampling_params=settings)


def expected(prompt):
    made = []
    while len(made) < TOKENS:
        made.append((prompt + sum(made)) % 97)
    return made


def kill(rollouts, name):
    os.kill(rollouts.pids[name], 9)


def kill_engine(rollouts, name):
    rollouts.ray.get(rollouts.servers[name].kill_engine.remote())


@contextlib.contextmanager
def looked_after(*, rebuilding=False):
    """Have verl's classes changed for a while; ``rebuilding``: as with ``new_replicas``."""
    from verl.checkpoint_engine import base
    from verl.workers.rollout import llm_server

    from rayguard.frameworks.verl_rollouts import client, replicas

    changed = (
        (llm_server.LLMServerClient, "generate"),
        (llm_server.LLMServerClient, "_acquire_server"),
        (llm_server.LLMServerManager, "__init__"),
        (base.CheckpointEngineManager, "update_weights"),
        (base.CheckpointEngineManager, "build_process_group"),
    )
    before = [(one, name, vars(one)[name]) for one, name in changed]
    assert (client.attach_rebuilding if rebuilding else client.attach)(llm_server)
    assert replicas.attach(base, book=book_of_checks if rebuilding else None)
    try:
        yield
    finally:
        for module in (llm_server, base):
            for mark in [one for one in vars(module) if one.startswith("__rayguard_")]:
                delattr(module, mark)
        for one, name, value in before:
            setattr(one, name, value)


def book_of_checks():
    from rayguard.frameworks.verl_rollouts.rebuild_plan import RebuildLimits
    from rayguard.frameworks.verl_rollouts.rebuilds import ReplicaRebuilds
    from rayguard.recovery.budget import RestartBudget

    return ReplicaRebuilds(RebuildLimits(budget=RestartBudget(max_restarts=2, within_s=3_600.0)))


def incidents(remedy="other_replica"):
    from rayguard.recovery.journal import default_journal

    return [(one.target, one.outcome.value) for one in default_journal().read() if one.remedy == remedy]


async def struck(rollouts, strike, number=8):
    """Have server a struck with requests in it; return the answers, or errors, and the time from the strike on."""
    client = rollouts.client()
    requests = [asyncio.ensure_future(ask(client, f"r{one}", one)) for one in range(number)]
    await rollouts.busy("a", 2)
    strike(rollouts, "a")
    began = time.monotonic()
    done = await asyncio.gather(*requests, return_exceptions=True)
    return done, time.monotonic() - began


def check_struck(ray, strike=kill, **options):
    """All requests are answered alike, the next turns follow, and nobody is sent to the lost one."""
    before, rollouts = len(incidents()), Rollouts(ray, "abc" if options else "ab", **options)
    try:
        done, took = asyncio.run(struck(rollouts, strike))
        assert [getattr(one, "token_ids", one) for one in done] == [expected(one) for one in range(8)]
        assert "a" not in rollouts.active()
        asked = rollouts.asked("a")

        async def turns():
            return [(await ask(rollouts.client(), f"r{one}")).extra_fields for one in range(8)]

        assert all(one["server"] != "a" and one["global_steps"] == STEP for one in asyncio.run(turns()))
        assert rollouts.asked("a") == asked
        assert incidents()[before:] == [("verl a", "recovered")]
        return took
    finally:
        rollouts.close()


def bare_struck(ray, strike=kill, **options):
    rollouts = Rollouts(ray, "abc" if options else "ab", **options)
    try:
        done, _ = asyncio.run(struck(rollouts, strike))
        errors = sorted({type(one).__name__ for one in done if isinstance(one, Exception)})
        lost = sum(isinstance(one, Exception) for one in done)
        blank = 0
        if options:  # the one that Ray started anew is still with the balancer
            rollouts.wait_for("a")

            async def more():
                return await asyncio.gather(*(ask(rollouts.client(), f"n{one}") for one in range(6)))

            blank = sum(one.extra_fields["global_steps"] is None for one in asyncio.run(more()))
        later = f"; {blank} of 6 later requests answered from the original weights, without a word" * bool(
            blank
        )
        return f"{', '.join(errors)} for {lost} of 8 requests{later}"
    finally:
        rollouts.close()


async def resumed(rollouts):
    """Have a request aborted as for a weight update, and its server killed as it goes on."""
    client = rollouts.client("FullyAsyncLLMServerClient")
    request = asyncio.ensure_future(ask(client, "r", 3))
    first = await _first_busy(rollouts)
    await asyncio.sleep(EACH_S * 2.5)
    await rollouts.servers[first].abort.remote()
    await rollouts.busy(first, 2)
    kill(rollouts, first)
    began = time.monotonic()
    return await request, first, time.monotonic() - began


async def _first_busy(rollouts):
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        for name in rollouts.servers:
            if rollouts.asked(name):
                return name
        await asyncio.sleep(0.01)
    raise AssertionError("no server has a request")


def check_resumed(ray):
    """What was generated before the abort is kept; only the piece that was lost is made again."""
    rollouts = Rollouts(ray)
    try:
        answer, first, took = asyncio.run(resumed(rollouts))
        assert answer.token_ids == expected(3)
        assert answer.extra_fields["min_global_steps"] == STEP
        assert first not in rollouts.active()
        return took
    finally:
        rollouts.close()


def bare_resumed(ray):
    rollouts = Rollouts(ray)
    try:
        asyncio.run(resumed(rollouts))
    except Exception as error:
        return type(error).__name__
    finally:
        rollouts.close()
    return "answered"


def pushed_after_a_death(ray):
    """Push weights to three replicas, kill the server of one, and push again."""
    of = manager(ray)
    all_of, lost = list(of.replicas), of.replicas[1]
    try:
        of.update_weights(global_steps=1)
        pid, _ = ray.get(lost.servers[0].received.remote())
        os.kill(pid, 9)
        began = time.monotonic()
        of.update_weights(global_steps=2)
        took = time.monotonic() - began
        return [ray.get(one.workers[0].received.remote())[1] for one in all_of], took
    finally:
        for replica in all_of:
            for one in [*replica.servers, *replica.workers]:
                ray.kill(one)


def check_pushed(ray):
    got, took = pushed_after_a_death(ray)
    assert got == [[1, 2], [1], [1, 2]], got
    return took


def bare_pushed(ray):
    try:
        pushed_after_a_death(ray)
    except Exception as error:
        return type(error).__name__
    return "pushed"


async def struck_replica(job):
    """Kill the server of replica 1 with requests in it; return the answers."""
    client, before = job.client(), len(list(job.folder.glob("*")))
    requests = [asyncio.ensure_future(ask(client, f"r{before}-{one}", one)) for one in range(9)]
    await job.busy(before + 9)
    os.kill(job.pid_of(1), 9)
    return await asyncio.gather(*requests)


def wait_for_the_new_one(job, known):
    """Wait until replica 1 was made again; it serves nobody yet."""
    from rayguard.frameworks.verl_rollouts import replicas

    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        ready = replicas._rebuilds[job.manager]._ready
        if ready and ready[0].made not in known:
            return ready[0].made
        threading.Event().wait(0.1)
    raise AssertionError("it was not made again")


def check_made_again(ray):
    """All requests are answered; from the next update on the capacity is what it was, with its weights. Thrice."""
    job, known, times, told = Standalone(ray), set(), [], len(incidents("new_replica"))
    try:
        job.manager.update_weights(global_steps=1)
        for step in (2, 3):
            lost = job.servers.rollout_replicas[1].server_address
            done = asyncio.run(struck_replica(job))
            began = time.monotonic()
            assert [one.token_ids for one in done] == [expected(one) for one in range(9)]
            made = wait_for_the_new_one(job, known)
            known.add(made)
            times.append(time.monotonic() - began)
            assert made.server_address not in job.active(), "it has the weights that it began with"
            job.manager.update_weights(global_steps=step)
            assert job.active() == sorted(job.servers.server_addresses)
            assert (lost in job.active(), made.server_address in job.active()) == (False, True)
            later = asyncio.run(asked_at_once(job))
            assert {one.extra_fields["global_steps"] for one in later} == {step}
            assert {one.extra_fields["server"] for one in later} == {"small_0", "small_1", "small_2"}
        asyncio.run(struck_replica(job))  # its budget is spent
        job.manager.update_weights(global_steps=4)
        assert len(job.active()) == len(job.manager.replicas) == 2
        outcomes = [outcome for _, outcome in incidents("new_replica")[told:]]
        assert outcomes == ["recovered", "recovered", "failed"], outcomes
        return max(times)
    finally:
        job.close()


def check_left_out(ray):
    """All requests are answered; weights go to the two others, over a group that is made anew for them."""
    job, told = Standalone(ray), len(incidents("new_replica"))
    try:
        job.manager.update_weights(global_steps=1)
        done = asyncio.run(struck_replica(job))
        assert [one.token_ids for one in done] == [expected(one) for one in range(9)]
        began = time.monotonic()
        job.manager.update_weights(global_steps=2)
        took = time.monotonic() - began
        job.manager.update_weights(global_steps=3)
        assert len(job.active()) == len(job.manager.replicas) == 2
        later = asyncio.run(asked_at_once(job))
        assert {one.extra_fields["global_steps"] for one in later} == {3}
        assert {one.extra_fields["server"] for one in later} == {"small_0", "small_2"}
        assert len(incidents("new_replica")) == told
        return took
    finally:
        job.close()


async def asked_at_once(job):
    client = job.client()
    return await asyncio.gather(*(ask(client, f"later{one}-{time.monotonic()}", one) for one in range(9)))


def bare_made_again(ray):
    job = Standalone(ray)
    try:
        job.manager.update_weights(global_steps=1)
        os.kill(job.pid_of(1), 9)
        job.manager.update_weights(global_steps=2)
    except Exception as error:
        return f"{type(error).__name__} of the next weight update"
    finally:
        job.close()
    return "pushed"


MADE_AGAIN = "a replica's server killed, twice, and again, with new_replicas: made again within its budget"
RESTARTS = {"max_restarts": 1}
FAULTS = {
    "a rollout server killed with 4 requests in it": (check_struck, bare_struck),
    "the engine of a rollout server died": (
        lambda ray: check_struck(ray, kill_engine),
        lambda ray: bare_struck(ray, kill_engine),
    ),
    "a rollout server killed that Ray starts anew, blank": (
        lambda ray: check_struck(ray, **RESTARTS),
        lambda ray: bare_struck(ray, **RESTARTS),
    ),
    "a rollout server killed as an aborted request goes on": (check_resumed, bare_resumed),
    "weights pushed after a replica's server was killed": (check_pushed, bare_pushed),
    "a replica's server killed: the others get weights, over a group of their own": (
        check_left_out,
        bare_made_again,
    ),
    MADE_AGAIN: (
        check_made_again,
        bare_made_again,
    ),
}


_NOTES = {
    "weights pushed after a replica's server was killed": _PUSH,
    "a replica's server killed: the others get weights, over a group of their own": _PUSH,
    MADE_AGAIN: _MADE,
}


def check_the_last_one(ray, **options):
    """Where there is no other, or the trainer would call the dead, the error is that of the bare call."""
    from ray.exceptions import RayActorError

    from rayguard.recovery.incident import incident_of

    rollouts = Rollouts(ray, **options)
    try:
        done, _ = asyncio.run(struck(rollouts, kill, number=len(rollouts.servers) * 2))
        found = [one for one in done if isinstance(one, Exception)]
        assert len(found) == 2
        assert all(isinstance(one, RayActorError) for one in found)
        assert sum(incident_of(one) is not None for one in found) == 1, "told once"
        assert rollouts.active() == sorted(rollouts.servers)
    finally:
        rollouts.close()


OTHERS = {
    "no other rollout server is left": lambda ray: check_the_last_one(ray, names="a"),
    "rollouts that share the trainer's GPUs": lambda ray: check_the_last_one(ray, backend="naive"),
}


def answers(ray):
    """Return what a run without a fault answers, both kinds of clients."""
    rollouts = Rollouts(ray)

    async def run():
        found = []
        for name in ("LLMServerClient", "FullyAsyncLLMServerClient"):
            client = rollouts.client(name)
            done = await asyncio.gather(*(ask(client, f"{name}{one}", one) for one in range(6)))
            found += [(one.token_ids, one.stop_reason, one.extra_fields["min_global_steps"]) for one in done]
        return found

    try:
        return asyncio.run(run()), rollouts.ray.get(rollouts.balancer.get_status.remote())["total_inflight"]
    finally:
        rollouts.close()


def came_of(ray, name):
    """Return what came of one fault, bare and with rayguard."""
    check, bare = FAULTS[name]
    ended, said, took, began = bare(ray), "", None, time.monotonic()
    try:
        with looked_after(rebuilding=name == MADE_AGAIN):
            took = check(ray)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return {
        "fault": name,
        "bare": ended,
        "survived": not said,
        "seconds": round(time.monotonic() - began if took is None else took, 1),
        "ratio_to_restart": None,
        "note": _NOTES.get(name, _ANSWER),
        "said": said,
    }


def held(ray, name):
    try:
        with looked_after():
            OTHERS[name](ray)
    except Exception as error:
        return {"check": name, "holds": False, "said": f"{type(error).__name__}: {error}"}
    return {"check": name, "holds": True}


def main(names=()):
    """Run the checks whose names begin so; say what came of each. Returns whether all hold."""
    os.environ.update(_VARIABLES)
    os.environ["RAYGUARD_HOME"] = tempfile.mkdtemp(prefix="rayguard-home-")
    import ray

    whole = True

    def told(line):
        nonlocal whole
        whole &= False not in (line.get("holds"), line.get("survived"), line.get("no_fault_identical"))
        print(json.dumps(line), flush=True)

    def wanted(all_names):
        return [name for name in all_names if not names or name.startswith(tuple(names))]

    ray.init(
        address="local",
        num_cpus=8,
        num_gpus=3,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        print(json.dumps({"version": version("verl")}), flush=True)
        for name in wanted(FAULTS):
            told(came_of(ray, name))
        for name in wanted(OTHERS):
            told(held(ray, name))
        if wanted(["no fault"]):
            bare = answers(ray)
            with looked_after(rebuilding=True):
                told({"no_fault_identical": answers(ray) == bare})
    finally:
        ray.shutdown()
    return whole


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:]))
