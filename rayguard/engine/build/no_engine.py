"""What a recipe returned instead of an engine, and what its writer is told."""

from __future__ import annotations

import inspect
from types import ModuleType

from rayguard.engine.settings import EngineSettings

# An object of any other type may be a home-made engine.
_NO_ENGINE = (str, bytes, bool, int, float, list, tuple, dict, set, type, ModuleType, EngineSettings)


def is_no_engine(built: object) -> bool:
    """Say whether what a recipe returned cannot be an engine."""
    unfinished = inspect.isawaitable(built) or inspect.isgenerator(built) or inspect.isasyncgen(built)
    return built is None or isinstance(built, _NO_ENGINE) or unfinished


def said_of(built: object) -> str:
    """Return what to say of it, and what to write."""
    if inspect.iscoroutine(built):
        built.close()  # left alone it would warn that it was never awaited
    found = repr(built) if built is None or isinstance(built, type) else f"a {type(built).__qualname__}"
    return (
        f"build_engine(settings) returned {found}: let it return the engine that it builds, an LLM, an "
        "AsyncLLM or an engine of your own (no coroutine: it is called in a thread, and may block)"
    )
