"""A takeover by a standby and a restart through the prefork server, against a cold start of a real vLLM engine.

    python tests/benchmarks/bench_restart.py [repetitions]

Cold: ``LLM(...)`` as vLLM starts it, to the first token. Prefork: SIGKILL of the serving engine core,
its death noticed, its processes ended, ``LLM(...)`` through the server, to the first token. Standby:
SIGKILL of the core in the middle of a request, to that request's next token from the engine that waited. vLLM
is imported in the owner before any of them, and bytecode is cached (without, a cold start takes twice as long
and the comparison would flatter us). They take turns. Prints a table and, as its last line, JSON; ends with 1
when a promise (a quarter of a cold start; one second) is not kept.
"""

import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "engine" / "prefork"))

import psutil
import tiny_qwen

from rayguard.engine.context import Surroundings
from rayguard.engine.prefork.server import PreforkServer, installed
from rayguard.engine.supervision.slot import engine_slot
from rayguard.process.identity import ProcessId
from rayguard.process.tree import descendants, end
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.machine import EngineState
from rayguard.recovery.policy import GuardPolicy

PROMISED_RATIO = 0.25
PROMISED_STANDBY_S = 1.0
PATIENCE_S = 300.0


def first_token(engine) -> None:
    """Generate one token, and make sure that it came."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
    assert len(engine.generate([tiny_qwen.PROMPT], params, use_tqdm=False)[0].outputs[0].token_ids) == 1


def core_of(engine):
    return engine.llm_engine.engine_core.resources.engine_manager.processes[0]


def end_engine(engine) -> None:
    """Kill the core, hear of its death, end what descends from it, let go of the engine."""
    core = core_of(engine)
    family = descendants(ProcessId.of(core.pid))
    core.kill()
    core.join(60)
    assert core.exitcode == -9, core.exitcode
    assert end(family, polite_s=0) == ()
    engine.llm_engine.engine_core.shutdown()


class Waiting:
    """An engine slot with a standby, idle but for the measurement."""

    def __init__(self, model, folder):
        from vllm import LLM

        def recipe(settings):
            return LLM(**settings.as_kwargs(model=model, **tiny_qwen.SETTINGS))

        self.slot = engine_slot(
            recipe,
            policy=GuardPolicy(
                standby="engine", engine_budget=RestartBudget(max_restarts=10_000, within_s=60.0)
            ),
            surroundings=Surroundings(target="bench", home=lambda: folder, write=lambda _incident: True),
        )
        self.slot.start()

    def ready(self):
        """Wait for the standby; return what it holds."""
        until, pause = time.monotonic() + PATIENCE_S, threading.Event()
        while (status := self.slot.status())["standby"] != "ready":
            assert time.monotonic() < until, "no standby"
            pause.wait(0.05)
        return status["standby_bytes"]

    def taken_over(self):
        """Kill the core in the middle of a request; return the seconds to its next token."""
        from vllm import SamplingParams

        self.ready()
        self.slot._recovery.state = EngineState()  # as if long after the last fault: the same settings
        params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, detokenize=False)
        engine = self.slot.engine(1.0).handle
        request = threading.Thread(
            target=lambda: engine.generate([tiny_qwen.PROMPT], params, use_tqdm=False), daemon=True
        )
        before, pause = self.slot.status(), threading.Event()
        request.start()
        until = time.monotonic() + PATIENCE_S
        while self.slot.status()["tokens_generated"] < before["tokens_generated"] + 20:
            assert time.monotonic() < until, "no tokens"
            pause.wait(0.001)
        began = time.monotonic()
        os.kill(before["pids"]["core"], signal.SIGKILL)
        while (now := self.slot.status())["epoch"] == before["epoch"]:
            assert time.monotonic() < until, "no takeover"
            pause.wait(0.001)
        while self.slot.status()["tokens_generated"] == now["tokens_generated"]:
            assert time.monotonic() < until, "no token after the takeover"
            pause.wait(0.001)
        took_s = time.monotonic() - began
        request.join(PATIENCE_S)
        return took_s


def main(repetitions: int) -> int:
    os.environ.update(tiny_qwen.environment())
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    server = PreforkServer()
    server.start()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_qwen.build(Path(folder))
        from vllm import LLM

        def build():
            return LLM(model, **tiny_qwen.SETTINGS)

        end_engine(build())  # the first one of a process fills the file cache and vLLM's own caches
        assert server.ready(120), "the prefork server does not serve"
        waiting = Waiting(model, Path(folder))
        holds = waiting.ready()
        rows = []
        for _ in range(repetitions):
            load, began = os.getloadavg()[0], time.monotonic()
            engine = build()
            first_token(engine)
            cold_s, began = time.monotonic() - began, time.monotonic()
            end_engine(engine)
            with installed(server) as forked:
                assert forked
                engine = build()
            first_token(engine)
            prefork_s = time.monotonic() - began
            assert psutil.Process(core_of(engine).pid).ppid() == server.pid, "it was not forked"
            end_engine(engine)
            rows.append((cold_s, prefork_s, waiting.taken_over(), load))
        own = psutil.Process(server.pid).memory_full_info()
        memory = own.rss / 2**20, own.uss / 2**20, holds / 2**20
        waiting.slot.close(0.0)
        server.stop()
    return report(rows, memory)


def report(rows: list[tuple[float, float, float, float]], memory: tuple[float, float, float]) -> int:
    print("\n  run   cold s   prefork s   ratio   standby s   ratio   load (1 min)")
    for number, (cold_s, prefork_s, standby_s, load) in enumerate(rows, 1):
        print(
            f"{number:5d} {cold_s:8.2f} {prefork_s:11.2f} {prefork_s / cold_s:7.3f}"
            f" {standby_s:11.3f} {standby_s / cold_s:7.4f} {load:14.1f}"
        )
    cold_s, prefork_s, standby_s = (statistics.median(row[column] for row in rows) for column in range(3))
    told = {
        "cold_s_median": round(cold_s, 3),
        "prefork_s_median": round(prefork_s, 3),
        "ratio": round(prefork_s / cold_s, 4),
        "standby_s_median": round(standby_s, 4),
        "standby_ratio": round(standby_s / cold_s, 5),
        "server_rss_mb": round(memory[0]),
        "server_uss_mb": round(memory[1]),
        "standby_uss_mb": round(memory[2]),
        "n": len(rows),
    }
    print(json.dumps(told), flush=True)
    return 0 if told["ratio"] <= PROMISED_RATIO and standby_s <= PROMISED_STANDBY_S else 1


if __name__ == "__main__":
    if sys.dont_write_bytecode:  # of the environment or -B, handed on to each spawned process
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
