"""Restart through the prefork server against a cold start, interleaved, on a real vLLM engine.

    python tests/benchmarks/bench_restart.py [repetitions]

Cold: ``LLM(...)`` as vLLM starts it, to the first token. Prefork: SIGKILL of the serving engine core,
its death noticed, its processes ended, ``LLM(...)`` through the server, to the first token. vLLM is
imported in the owner before either, and bytecode is cached (without, a cold start takes twice as long and
the comparison would flatter us). Prints a table and, as its last line, JSON; ends with 1 when the
promise (a quarter of a cold start) is not kept.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

import psutil
import tiny_qwen

from rayguard.engine.prefork import PreforkServer, installed
from rayguard.process.identity import ProcessId
from rayguard.process.tree import descendants, end

PROMISED_RATIO = 0.25


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
    core.join(10)
    assert core.exitcode == -9, core.exitcode
    assert end(family, polite_s=0) == ()
    engine.llm_engine.engine_core.shutdown()


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
            rows.append((cold_s, time.monotonic() - began, load))
            assert psutil.Process(core_of(engine).pid).ppid() == server.pid, "it was not forked"
            end_engine(engine)
        memory = server.rss_bytes() / 2**20, server.uss_bytes() / 2**20
        server.stop()
    return report(rows, memory)


def report(rows: list[tuple[float, float, float]], memory: tuple[float, float]) -> int:
    print("\n  run   cold s   prefork s   ratio   load (1 min)")
    for number, (cold_s, prefork_s, load) in enumerate(rows, 1):
        print(f"{number:5d} {cold_s:8.2f} {prefork_s:11.2f} {prefork_s / cold_s:7.3f} {load:14.1f}")
    cold_s, prefork_s = (statistics.median(row[column] for row in rows) for column in (0, 1))
    told = {
        "cold_s_median": round(cold_s, 3),
        "prefork_s_median": round(prefork_s, 3),
        "ratio": round(prefork_s / cold_s, 4),
        "server_rss_mb": round(memory[0]),
        "server_uss_mb": round(memory[1]),
        "n": len(rows),
    }
    print(json.dumps(told), flush=True)
    return 0 if told["ratio"] <= PROMISED_RATIO else 1


if __name__ == "__main__":
    if sys.dont_write_bytecode:  # of the environment or -B, handed on to each spawned process
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
