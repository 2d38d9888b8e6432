"""Errors as they come up in training jobs, by their real types and words. Some are made, some happen here.

``NAMES`` has their names; a program's call carries one, and its actor raises what ``made`` returns.
"""

from __future__ import annotations

import decimal
import importlib
import io
import json
import os
import pickle
import socket
import sqlite3
import subprocess
import zipfile
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_JUDGE = "HTTPConnectionPool(host='judge', port=8000)"
_READ_TIMEOUT = f"{_JUDGE}: Read timed out. (read timeout=30)"
_TOLD: tuple[tuple[str, str], ...] = (  # type, message
    ("builtins.ConnectionError", _READ_TIMEOUT),
    ("builtins.ConnectionResetError", "[Errno 104] Connection reset by peer"),
    ("builtins.BrokenPipeError", "[Errno 32] Broken pipe"),
    ("builtins.TimeoutError", "timed out"),
    ("builtins.OSError", "[Errno 28] No space left on device: '/data/ckpt/step_4'"),
    ("builtins.PermissionError", "[Errno 13] Permission denied: '/data/ckpt'"),
    ("builtins.MemoryError", ""),
    ("builtins.AssertionError", "num_common_prefix_blocks >= 0"),
    ("builtins.RuntimeError", "CUDA error: device-side assert triggered"),
    ("builtins.RuntimeError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
    ("builtins.RuntimeError", "NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error"),
    ("builtins.RuntimeError", "Event loop is closed"),
    ("builtins.NotImplementedError", ""),
    ("builtins.RecursionError", "maximum recursion depth exceeded"),
    ("builtins.EOFError", "Ran out of input"),
    ("builtins.ModuleNotFoundError", "No module named 'flash_attn'"),
    ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has 79.10 GiB"),
    ("torch.distributed.DistNetworkError", "The client socket has timed out after 600000ms"),
    ("requests.exceptions.ReadTimeout", _READ_TIMEOUT),
    ("requests.exceptions.HTTPError", "429 Client Error: Too Many Requests for url: https://judge/v1"),
    ("aiohttp.client_exceptions.ServerDisconnectedError", "Server disconnected"),
    ("aiohttp.client_exceptions.ClientPayloadError", "Response payload is not completed"),
    ("httpx.ReadTimeout", "The read operation timed out"),
    ("httpx.ConnectError", "All connection attempts failed"),
    ("concurrent.futures.process.BrokenProcessPool", "A child process terminated abruptly"),
    ("multiprocessing.context.TimeoutError", ""),
    ("queue.Empty", ""),
    ("socket.gaierror", "[Errno -2] Name or service not known"),
    ("ssl.SSLError", "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
    ("threading.BrokenBarrierError", ""),
    ("jinja2.exceptions.UndefinedError", "'messages' is undefined"),
    ("yaml.scanner.ScannerError", "mapping values are not allowed here"),
    ("safetensors.SafetensorError", "Error while deserializing header: MetadataIncompleteBuffer"),
    ("ray.exceptions.GetTimeoutError", "Get timed out: some object(s) not ready."),
    ("ray.exceptions.ObjectStoreFullError", "Failed to put object: the object store is full"),
)


def _refused(status: int) -> Any:
    httpx = importlib.import_module("httpx")
    return httpx.Response(status, request=httpx.Request("POST", "https://judge/v1/completions"))


def _of_openai() -> None:
    openai = importlib.import_module("openai")
    raise openai.RateLimitError("Error code: 429 - Rate limit reached", response=_refused(429), body=None)


def _of_the_hub() -> None:
    hub = importlib.import_module("huggingface_hub.errors")
    raise hub.HfHubHTTPError("429 Client Error: Too Many Requests", response=_refused(429))


class JudgeError(Exception):
    """A user's own, which does not come out of a pickle again."""

    def __init__(self, *, score: float) -> None:
        super().__init__(f"the judge gave {score}")


def _of_the_judge() -> None:
    raise JudgeError(score=-1.0)


def _answered_twice() -> None:
    future: Future[int] = Future()
    future.set_result(1)
    future.set_result(2)


_HAPPENING: dict[str, Callable[[], object]] = {
    "ConnectionRefusedError": lambda: socket.create_connection(("127.0.0.1", 1), timeout=5.0),
    "FileNotFoundError": lambda: Path("/data/rewards.json").stat(),
    "IsADirectoryError": lambda: os.open("/", os.O_WRONLY),
    "ValueError": lambda: float("\\boxed{7}"),
    "KeyError": lambda: {}["reward"],
    "IndexError": [].pop,
    "TypeError": lambda: "1" / 2,  # type: ignore[operator]
    "AttributeError": lambda: None.logits,  # type: ignore[attr-defined]
    "ZeroDivisionError": lambda: 1 / 0,
    "OverflowError": lambda: 2.0**5000,
    "UnicodeDecodeError": b"\xff".decode,
    "JSONDecodeError": lambda: json.loads(""),
    "CalledProcessError": lambda: subprocess.run(["false"], check=True),
    "BadZipFile": lambda: zipfile.ZipFile(io.BytesIO(b"no zip")),
    "OperationalError": lambda: sqlite3.connect("/data/none/scores.db"),
    "UnpicklingError": lambda: pickle.loads(b"\x80\x04\x95"),
    "InvalidStateError": _answered_twice,
    "InvalidOperation": lambda: decimal.Decimal("a"),
    "ValidationError": lambda: importlib.import_module("pydantic").TypeAdapter(int).validate_python("x"),
    "RuntimeError": lambda: importlib.import_module("torch").ones(2, 3).mm(_ones()),
    "RateLimitError": _of_openai,
    "HfHubHTTPError": _of_the_hub,
    "JudgeError": _of_the_judge,
}


def _ones() -> Any:
    return importlib.import_module("torch").ones(2, 3)


NAMES = (*(f"{number}:{kind.rpartition('.')[2]}" for number, (kind, _) in enumerate(_TOLD)), *_HAPPENING)


def poisons(name: str) -> bool:
    """Say whether a process in which this was raised can do nothing more with its device: rayguard ends it."""
    return ":" in name and "device-side assert" in _TOLD[int(name.partition(":")[0])][1]


def made(name: str) -> Exception:
    """Return a new error of this name."""
    if name in _HAPPENING:
        try:
            _HAPPENING[name]()
        except Exception as error:
            return error
        raise LookupError(f"{name} did not happen")
    kind, message = _TOLD[int(name.partition(":")[0])]
    module, _, of_module = kind.rpartition(".")
    found: type[Exception] = getattr(importlib.import_module(module), of_module)
    return found(*(message,) if message else ())
