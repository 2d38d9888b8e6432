"""A server that speaks what TRL's and ms-swift's clients speak: it counts, holds weights, dies and comes back.

``python -m tests.frameworks.inference_server PORT [--no-metrics] [--deadly]`` is one; ``InferenceServer`` starts and kills it.
Standard library only. Weights come over HTTP (``/weights``), where the real ones come over NCCL; what it answers
tells which weights it had.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ORIGINAL = {"w": [0.0]}
_SAMPLED = frozenset({"/v1/completions", "/infer"})


class Told:
    """What the server knows."""

    def __init__(self, options):
        self.metrics = "--no-metrics" not in options
        self.deadly = "--deadly" in options
        self.started = time.time()
        self.weights = dict(ORIGINAL)
        self.group = None
        self.tokens = 0
        self.calls = Counter()
        self.plan = {}  # what to do at the next call of a path: "die", "fail", "hang"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Say nothing."""

    def do_GET(self):
        path = self.path.partition("?")[0].rstrip("/")
        told = self.server.told
        if path == "/state":
            return self.answer({"weights": told.weights, "group": told.group, "calls": told.calls})
        if path == "/metrics":
            if not told.metrics:
                return self.answer({}, 404)
            return self.text(
                "# HELP x\n"
                f"process_start_time_seconds {told.started!r}\n"
                f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {told.tokens}.0\n'
            )
        known = {
            "/health": {},
            "/v1/models": {"data": [{"id": "m"}]},
            "/get_world_size": {"world_size": 1},
            "/server_info": {"vllm_config": {"weight_transfer_config": {"backend": "nccl"}}},
        }
        return self.answer(known.get(path, {}), 200 if path in known else 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        path, told = self.path.rstrip("/"), self.server.told
        if path == "/plan":
            told.plan.update(body)
            return self.answer({})
        told.calls[path] += 1
        plan = told.plan.pop(path, "")
        if plan == "die" or (told.deadly and path in _SAMPLED):
            os._exit(1)
        if plan == "fail":
            return self.text("Internal Server Error", 500)
        if plan == "hang":
            threading.Event().wait(600)
        if plan == "work":  # longer than any patience, with tokens all the time
            for _ in range(25):
                told.tokens += 1
                threading.Event().wait(0.1)
        return self.answer(*self.known(path, body))

    def known(self, path, body):
        told = self.server.told
        if path in {"/init_weight_transfer_engine", "/init_communicator"}:
            if told.group is not None:
                return {"error": "already initialized"}, 500
            told.group = body.get("port") or body["init_info"]["master_port"]
        elif path == "/close_communicator":
            told.group = None
        elif path == "/weights" and told.group != body["port"]:
            return {"error": f"no group on {body['port']}"}, 500
        elif path == "/weights":
            told.weights.update(body["weights"])
        elif path in _SAMPLED:
            return self.sampled(path, body)
        return {"success": True, "engine_type": "LLM"}, 200

    def sampled(self, path, body):
        told = self.server.told
        told.tokens += 1
        now = told.weights["w"][0]
        if path == "/infer":
            return [{"weight": now} for _ in body["infer_requests"]], 200
        one = {"prompt_token_ids": [1], "token_ids": [int(now)], "logprobs": None}
        return {"choices": [one] * len(body["prompt"])}, 200

    def answer(self, body, status=200):
        self.text(json.dumps(body), status)

    def text(self, body, status=200):
        raw = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


class InferenceServer:
    """One of these in a process of its own, on a port that it keeps from life to life."""

    def __init__(self, *options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.options = options
        self.process = None
        self.later = []
        self.start()

    def start(self, *, wait_s=60.0):
        command = [sys.executable, "-m", "tests.frameworks.inference_server", str(self.port), *self.options]
        self.process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                self.state()
                return
            threading.Event().wait(0.02)
        raise TimeoutError(self.url)

    def kill(self):
        """As the kernel does it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def restart(self):
        self.kill()
        self.start()

    def restart_once_dead(self):
        """Start it again as soon as it has ended by itself or was killed: what a supervisor does."""

        def wait_and_start():
            self.process.wait(60)
            self.start()

        self.later.append(threading.Thread(target=wait_and_start))
        self.later[-1].start()

    def state(self):
        with urllib.request.urlopen(f"{self.url}/state", timeout=5) as answer:
            return json.load(answer)

    def plan(self, **paths):
        """Say what happens at the next call of a path: ``plan(infer="die")``."""
        body = json.dumps({f"/{path.replace('__', '/')}": what for path, what in paths.items()}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/plan", body), timeout=5).close()

    def close(self):
        for one in self.later:
            one.join(60)
        self.kill()


def main():
    """Serve."""
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    server.told = Told(sys.argv[2:])
    server.serve_forever()


if __name__ == "__main__":
    main()
