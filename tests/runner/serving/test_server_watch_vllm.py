"""The real server of vLLM under ``rayguard run``: its engine stands still under a request, and it comes back."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
import urllib.request

import psutil
import pytest
from test_server_watch import asked, free_port

from rayguard.runner.serving.counters import counters_of
from rayguard.runner.serving.found import SILENT
from rayguard.testing import tiny_qwen

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]
TEXTS = ["one two three four five six seven eight nine ten"] * 20
START_S = 600  # of a server, beside tests that compute
SILENCE_S = 20
ENVIRONMENT = (
    "HF_HUB_OFFLINE=1",
    "VLLM_CPU_KVCACHE_SPACE=1",
    "VLLM_CPU_OMP_THREADS_BIND=nobind",
    "OMP_NUM_THREADS=1",
)
SERVER = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
SMALL = ("--enforce-eager", "--dtype", "float32", "--max-model-len", 16_000, "--max-num-seqs", 4)
LEAN = ("--gpu-memory-utilization", 0.02)  # of the host's memory, on the CPU


def until(what, within_s=START_S):
    """Wait for what ``what`` returns, once it is something."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        with contextlib.suppress(OSError, psutil.Error):
            found = what()
            if found:
                return found
        threading.Event().wait(0.2)
    raise TimeoutError(what)


def completion(port, model, tokens):
    body = json.dumps(
        {"model": model, "prompt": [5, 6, 7], "max_tokens": tokens, "ignore_eos": True}
    ).encode()
    asks = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asks, timeout=START_S) as answer:
        return json.load(answer)["usage"]["completion_tokens"]


def long_request(port, model):
    """Ask for more than is made before the engine stops; nobody answers it."""
    with contextlib.suppress(OSError):
        completion(port, model, 15_000)


def core_of(pid):
    below = psutil.Process(pid).children(recursive=True)
    return next((one.pid for one in below if one.cmdline()[:1] == ["VLLM::EngineCore"]), None)


def works(port):
    """Whether a request runs that has got tokens already."""
    return any(
        one.running and one.tokens > 10 for one in counters_of(asked(port, "/metrics").decode()).values()
    )


def test_an_engine_that_stands_still_under_a_request_is_started_again(stage, tmp_path):
    """Its server says all the time that it is well; the client's request ends, and the next one is answered."""
    shutil.rmtree(stage.folder / "accelerate")  # transformers would take it for the real one
    model = str(tiny_qwen.build(tmp_path / "model", tied=True, spread=0.2, texts=TEXTS, context=16_384))
    port, log = free_port(), tmp_path / "log"
    words = (*ENVIRONMENT, *SERVER, "--model", model, "--port", port, *SMALL, *LEAN)
    with log.open("wb") as file:
        options = ["--silence", SILENCE_S, "--grace", 10, "--no-preflight"]
        process = stage.start(*words, options=options, stdout=file, stderr=file)
    try:
        until(lambda: asked(port, "/health") == b"")
        (client := threading.Thread(target=long_request, args=(port, model))).start()
        until(lambda: works(port), 60)
        os.kill(first := core_of(process.pid), signal.SIGSTOP)
        assert asked(port, "/health") == b""
        client.join(START_S)
        second = until(lambda: core_of(process.pid) not in (None, first) and core_of(process.pid))
        until(lambda: asked(port, "/health") == b"")
        assert completion(port, model, 5) == 5
        assert not psutil.pid_exists(first)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    said = log.read_text(errors="replace")
    assert "engine 0 of the server stands still: 1 requests run" in said
    assert "started again in 5 s (1 of 3)" in said
    assert "was ended by rayguard" in said
    assert next(one.signature for one in stage.incidents()) == SILENT
    assert not psutil.pid_exists(second)
