"""Where a process of an engine writes what goes wrong in it: into its owner's folder, whoever that is now."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from rayguard.engine.error_records import RECORDS_ENV, RecordingHandler, RecordWriter

if TYPE_CHECKING:
    from rayguard.faults.fault import Role

_handlers: list[RecordingHandler] = []  # of the calling process: one, or none


def begin(directory: str, role: Role) -> None:
    """Record what vLLM logs as an error; a child goes on in the place of the handler that it inherited."""
    writer = RecordWriter(directory, role, os.getpid())
    if _handlers:
        _handlers[0].writer = writer
        return
    _handlers.append(RecordingHandler(writer))
    _keep_first(logging.getLogger("vllm"), _handlers[0])


def move(directory: str) -> None:
    """Write into ``directory`` from now on."""
    os.environ[RECORDS_ENV] = directory
    for handler in _handlers:
        handler.writer = RecordWriter(directory, handler.writer.role, os.getpid())


def move_here(_worker: object, directory: str) -> None:
    """Do so in a worker: of what is called there, it is the first argument."""
    move(directory)


def write(message: str, error: BaseException | None) -> None:
    """Record ``error``; raises ``OSError``."""
    for handler in _handlers:
        handler.writer.write(message, error)


def _keep_first(logger: logging.Logger, handler: logging.Handler) -> None:
    """Make ``handler`` the first of ``logger``, for good.

    First, because vLLM's own writes to a pipe that may be full. For good, because a forked worker calls
    ``dictConfig`` (its ``worker_main`` does) after we were installed, and that takes off all handlers
    that it does not name.
    """
    logger.handlers.insert(0, handler)
    take_off = logger.removeHandler

    def remove_handler(hdlr: logging.Handler) -> None:
        if hdlr is not handler:
            take_off(hdlr)

    logger.removeHandler = remove_handler  # type: ignore[method-assign]
