"""A real Prometheus on loopback, for as long as a ``with`` block: started, asked, ended by its pid.

Debian's package ``prometheus`` brings it, and ``promtool``.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_READY_S = 60.0
_ASK_S = 20.0
_END_S = 10.0
_LOOK_S = 0.2
HOW_TO_GET_IT = (
    "no `prometheus` here: `apt-get install -y prometheus` (Debian, Ubuntu) brings it and promtool"
)


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert as Prometheus has it now: pending or firing."""

    name: str
    state: str
    labels: dict[str, str]


class Prometheus:
    """``with Prometheus(folder, config) as server: server.ask("up")``. ``config`` is prometheus.yml as text."""

    def __init__(self, folder: Path, config: str, *options: str) -> None:
        if shutil.which("prometheus") is None:
            raise RuntimeError(HOW_TO_GET_IT)
        self._folder, self._config, self._options = folder, config, options
        self._pause = threading.Event()
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "prometheus.yml").write_text(self._config)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Start it (again): what it has stored is kept."""
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        with (self._folder / "prometheus.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    *self._options,
                ],
                stdout=log,
                stderr=log,
            )
        self.until(self._ready, _READY_S, "Prometheus is not ready")

    def kill(self) -> None:
        """Kill it as an accident would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(_END_S)

    def end(self) -> None:
        """End it; by force where it does not go."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Return the instant vector (or scalar) that ``query`` is now."""
        found = self._get("/api/v1/query", query=query)
        if found["resultType"] == "scalar":
            return [{"metric": {}, "value": found["result"]}]
        return list(found["result"])

    def course(self, query: str, *, since_s: float, step_s: float) -> list[dict[str, Any]]:
        """Return how ``query`` went over the last ``since_s`` seconds."""
        now = time.time()
        return list(
            self._get("/api/v1/query_range", query=query, start=now - since_s, end=now, step=step_s)["result"]
        )

    def alerts(self) -> list[Alert]:
        """Return the alerts that are pending or firing now."""
        return [
            Alert(one["labels"]["alertname"], one["state"], one["labels"])
            for one in self._get("/api/v1/alerts")["alerts"]
        ]

    def rules(self) -> dict[str, str]:
        """Return each rule's health ("ok", "err", "unknown") by its name."""
        groups = self._get("/api/v1/rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def targets(self) -> list[dict[str, Any]]:
        """Return what it scrapes now."""
        return list(self._get("/api/v1/targets")["activeTargets"])

    def until(self, true: Callable[[], bool], limit_s: float, what: str) -> None:
        """Wait until ``true()``.

        Raises:
            TimeoutError: It was not in ``limit_s`` seconds.
        """
        deadline = time.monotonic() + limit_s
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} after {limit_s:.0f} s; its log: {self._last_words()}")
            self._pause.wait(_LOOK_S)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=_ASK_S) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _get(self, path: str, **parameters: Any) -> dict[str, Any]:
        asked = f"{self.url}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(asked, timeout=_ASK_S) as answer:
                return dict(json.load(answer)["data"])
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters}: {json.load(error).get('error')}") from error

    def _last_words(self) -> str:
        log = self._folder / "prometheus.log"
        return log.read_text()[-800:] if log.exists() else "(none)"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
