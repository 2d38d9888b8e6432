"""A program that owns a real vLLM engine: ``python vllm_owner.py WHAT MODEL_FOLDER``.

WHAT is ``natural`` (die of vLLM's own bug), ``worker`` (kill the worker in the
middle of a request) or ``idle``. Says what it sees on lines that begin with ``@``.
"""

import asyncio
import dataclasses
import json
import os
import signal
import sys
import threading

from rayguard.engine.error_records import read_records
from rayguard.home import home
from rayguard.process.cleanup import belongings
from rayguard.process.cleanup.verdict import Sort
from rayguard.process.identity import ProcessId, mark_environment, owner_mark
from rayguard.process.tree import descendants


def say(what):
    print("@" + json.dumps(what), flush=True)


async def generate(engine, count, seed):
    from vllm import SamplingParams

    parameters = SamplingParams(max_tokens=400, temperature=1.0, seed=seed, ignore_eos=True)

    async def one(number):
        prompt = {"prompt_token_ids": [5 + number] * 200}
        async for _ in engine.generate(prompt, parameters, request_id=str(number)):
            pass

    await asyncio.gather(*(one(number) for number in range(count)))


async def own(what, model):
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.exceptions import EngineDeadError

    arguments = AsyncEngineArgs(
        model=model, max_model_len=1024, max_num_batched_tokens=256, max_num_seqs=4, enforce_eager=True
    )
    engine = await asyncio.to_thread(AsyncLLM.from_engine_args, arguments)
    core = ProcessId.of(engine.engine_core.resources.engine_manager.processes[0].pid)
    family = (core, *descendants(core))
    noted = belongings.note(family, home()) if os.environ.get("RAYGUARD_HOME") else ()
    segments = [one.path for one in noted if one.sort is Sort.SEGMENT]
    say({"processes": [dataclasses.astuple(process) for process in family], "segments": segments})
    if what == "idle":
        await asyncio.sleep(600)
    if what == "worker":
        threading.Timer(0.5, os.kill, (family[1].pid, signal.SIGKILL)).start()
    try:
        while True:
            await generate(engine, 3, seed=1 if what == "natural" else None)
    except EngineDeadError as error:
        found = read_records(os.environ["RAYGUARD_RECORDS"], 0)  # at once: no time to be written later
        say(
            {
                "caught": type(error).__name__,
                "exceptions": [dataclasses.asdict(fact) for fact in found.exceptions],
                "log": found.log,
            }
        )


if __name__ == "__main__":
    os.environ.update(mark_environment(owner_mark(ProcessId.me())))
    asyncio.run(own(*sys.argv[1:]))
