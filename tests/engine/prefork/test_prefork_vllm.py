"""Real vLLM engines through the prefork server: built, killed, rebuilt; with and without it, alike.

Each scenario is a script of its own: vLLM leaves threads, environment and signal handlers in a process.
"""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import tiny_qwen

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

PRELUDE = """
import asyncio, json, os, signal, sys, threading, time
import psutil
import tiny_qwen
from rayguard.engine.prefork.server import PreforkServer, installed
from rayguard.recovery.tally import TALLY

MODEL = sys.argv[1]

def facts(pid):
    "What a spawned and a forked engine process must agree on."
    status = open(f"/proc/{pid}/status").read()
    keep = ("Cpus_allowed_list", "SigBlk")
    return {line.split(":")[0]: line.split(":")[1].strip() for line in status.splitlines()
            if line.startswith(keep)}

def sync_engine():
    from vllm import LLM
    return LLM(MODEL, **tiny_qwen.SETTINGS)

def tokens(engine, count=40):
    from vllm import SamplingParams
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False, logprobs=1)
    done = engine.generate([tiny_qwen.PROMPT], params, use_tqdm=False)[0].outputs[0]
    return list(done.token_ids), [round(step[token].logprob, 6) for step, token in zip(done.logprobs, done.token_ids)]

def core_of(engine):
    client = engine.llm_engine.engine_core if hasattr(engine, "llm_engine") else engine.engine_core
    return client.resources.engine_manager.processes[0]

def workers_of(core):
    return psutil.Process(core.pid).children()

def kill(engine):
    core = core_of(engine)
    family = workers_of(core)
    core.kill()
    core.join(10)
    assert psutil.wait_procs(family, 20)[1] == [], "a worker outlives its core"
    (engine.llm_engine.engine_core if hasattr(engine, "llm_engine") else engine).shutdown()
    return core.exitcode
"""


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The tiny model on disk."""
    return tiny_qwen.build(tmp_path_factory.mktemp("qwen"))


@pytest.fixture
def told(tmp_path, model):
    """Run a script after the prelude; return what it put into ``told``."""

    def run(source):
        body = textwrap.indent(textwrap.dedent(source), "    ")
        script, answer = tmp_path / "script.py", tmp_path / "told.json"
        script.write_text(
            f"{PRELUDE}\nif __name__ == '__main__':\n    told = {{}}\n{body}\n"
            f"    open(sys.argv[2], 'w').write(json.dumps(told))\n"
        )
        environment = {**tiny_qwen.environment(), "PYTHONPATH": str(Path(__file__).parent)}
        done = subprocess.run(
            [sys.executable, script, model, answer],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=580,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6_000:]
        return json.loads(answer.read_text())

    return run


def test_a_forked_engine_is_a_spawned_one_but_for_the_time(told):
    """Same tokens and logprobs, CPUs, threads; forked from the server; killed with its true exit code; rebuilt.

    Where the server is killed its core is reported dead at once; that build spawns, the next forks again.
    """
    told = told("""
        server = PreforkServer()
        server.start()
        spawned = sync_engine()
        told["spawned"] = [tokens(spawned), facts(workers_of(core_of(spawned))[0].pid)]
        told["spawned_threads"] = workers_of(core_of(spawned))[0].num_threads()
        kill(spawned)
        assert server.ready(120)
        told["changed"] = server._last().changed()
        told["threads"] = psutil.Process(server.pid).num_threads()
        told["forked"], told["exits"], told["parents"] = [], [], []
        for ends in ("core", "server", "core"):
            with installed(server, wait_s=120) as forked:
                engine = sync_engine()
            core = core_of(engine)
            worker = workers_of(core)[0]
            told["parents"].append([forked, psutil.Process(core.pid).ppid() == server.pid, worker.ppid() == core.pid])
            told["forked"].append([tokens(engine), facts(worker.pid)])
            told["forked_threads"] = worker.num_threads()
            told["titles"] = [open(f"/proc/{pid}/comm").read().strip() for pid in (server.pid, core.pid, worker.pid)]
            if ends == "core":
                told["exits"].append(kill(engine))
                continue
            family = [psutil.Process(core.pid), worker]
            os.kill(server.pid, signal.SIGKILL)
            core.join(10)
            told["exits"].append(core.exitcode)
            told["left"] = len(psutil.wait_procs(family, 20)[1])
            engine.llm_engine.engine_core.shutdown()
            with installed(server) as told["at_once"]:
                pass
        told["errors"] = TALLY.guard_errors["prefork"]
        from vllm.v1.engine import utils
        told["restored"] = utils.get_mp_context.__module__
        server.stop()
    """)
    assert told["changed"] == []
    assert told["threads"] == 1
    assert told["forked"] == [told["spawned"]] * 3
    assert told["parents"] == [[True, True, True]] * 3
    assert told["exits"] == [-9, 255, -9]
    assert told["left"] == 0
    assert told["at_once"] is False
    # Helpers of vLLM come and go by one; a thread pool lost in the fork, or one made twice, is many.
    assert abs(told["forked_threads"] - told["spawned_threads"]) <= 2
    assert told["titles"] == ["rayguard::prefo", "VLLM::EngineCor", "VLLM::Worker"]
    assert told["errors"] == 0
    assert told["restored"] == "vllm.utils.system_utils"


def test_plugins_load_in_a_forked_core(told):
    """Preloaded modules must not make the child believe that its plugins are loaded."""
    told = told("""
        server = PreforkServer()
        server.start()
        assert server.ready(120)
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        context = server.context()
        queue = context.Queue()
        process = context.Process(target=tiny_qwen.look, args=(queue,))
        process.start()
        told.update(queue.get(timeout=60))
        process.join(10)
        told["exitcode"] = process.exitcode
        server.stop()
    """)
    assert told == {
        "plugins_loaded": False,
        "cuda": False,
        "imported": True,
        "parallel_sum": 1_000_000.0,
        "exitcode": 0,
    }


def test_an_async_engine_in_a_thread_of_a_ray_actor(told):
    """Built off the main thread, through the actor's own server, which ends with it."""
    told = told("""
        import ray
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)

        @ray.remote
        class Rollout:
            async def generate(self):
                from vllm import AsyncEngineArgs, SamplingParams
                from vllm.v1.engine.async_llm import AsyncLLM
                from rayguard.recovery.tally import TALLY
                server = PreforkServer()
                server.start()
                def build():
                    with installed(server, wait_s=120) as forked:
                        return forked, AsyncLLM.from_engine_args(
                            AsyncEngineArgs(MODEL, **tiny_qwen.SETTINGS))
                told = {"main_thread": threading.current_thread() is threading.main_thread()}
                forked, engine = await asyncio.to_thread(build)
                params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
                async for output in engine.generate(tiny_qwen.PROMPT, params, "r"):
                    pass
                core = core_of(engine)
                of_server = psutil.Process(core.pid).ppid() == server.pid
                told["run"] = [forked, of_server, len(output.outputs[0].token_ids)]
                told["errors"] = TALLY.guard_errors["prefork"]
                return told, [server.pid, core.pid]

        actor = Rollout.remote()
        found, pids = ray.get(actor.generate.remote(), timeout=300)
        family = [psutil.Process(pid) for pid in pids]
        ray.kill(actor)
        told.update(found, left=len(psutil.wait_procs(family, 10)[1]))
        ray.shutdown()
    """)
    assert told == {"main_thread": False, "run": [True, True, 8], "errors": 0, "left": 0}
