"""A small server with an engine of its own, in the place of real ones: ``python stub_server.py PORT [HOW...]``.

Its engine is a process with vLLM's title, below a worker that has none, as ms-swift has it. How: ``still``, ``idle``,
``slow`` are what its /metrics tells, none at all without; ``again`` makes a new worker when one has gone; ``flat`` has its
engine as its own child. ``/infer`` is answered when its engine makes a token: never, in a server that stands still.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ENGINE = "subprocess.Popen(['VLLM::EngineCore', '1000'], executable='/bin/sleep')"
WORKER = f"import subprocess, threading; one = {ENGINE}; one.wait(); threading.Event().wait(1000)"
LOOKS_A_TOKEN = 3


class StubHandler(BaseHTTPRequestHandler):
    """One request."""

    def log_message(self, *_):
        """Say nothing."""

    def do_GET(self):
        server = self.server
        path = self.path.rstrip("/")
        if path == "/metrics" and server.how & {"still", "idle", "slow"}:
            server.looks += 1
            return self.answer(server.metrics())
        if path == "/state":
            return self.answer(
                json.dumps({"pid": os.getpid(), "worker": server.worker.pid, "looks": server.looks})
            )
        if path == "/infer":
            threading.Event().wait(1000)
        return self.answer("ok", 200 if path == "/health" else 404)

    def answer(self, text, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


class StubServer(ThreadingHTTPServer):
    """What it knows."""

    daemon_threads = True

    def __init__(self, port, how):
        super().__init__(("127.0.0.1", port), StubHandler)
        self.how, self.looks = frozenset(how), 0
        self.start_worker()

    def start_worker(self):
        if "flat" in self.how:
            self.worker = subprocess.Popen(["VLLM::EngineCore", "1000"], executable="/bin/sleep")
        else:
            self.worker = subprocess.Popen([sys.executable, "-c", WORKER])
        if "again" in self.how:
            threading.Thread(target=self.replace, daemon=True).start()

    def replace(self):
        self.worker.wait()
        self.start_worker()

    def metrics(self):
        running = 0 if "idle" in self.how else 1
        tokens = self.looks // LOOKS_A_TOKEN if "slow" in self.how else 0
        return (
            "# TYPE vllm:num_requests_running gauge\n"
            f'vllm:num_requests_running{{engine="0"}} {running}.0\n'
            "# TYPE vllm:generation_tokens counter\n"
            f'vllm:generation_tokens_total{{engine="0"}} {7 + tokens}.0\n'
        )


if __name__ == "__main__":
    StubServer(int(sys.argv[1]), sys.argv[2:]).serve_forever()
