"""What the installed vLLM's engine takes, asked without building one."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, TypeGuard

from rayguard.engine.deadline import bounded
from rayguard.engine.settings import refuse_ray_workers
from rayguard.engine.vllm.door.meetings import refuse_settings
from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayguard.engine.vllm.interfaces import LLM, LLMEngine

_END_S = 10.0


def accepted_arguments() -> frozenset[str]:
    """Return the argument names that the installed vLLM's engine takes."""
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415 - seconds of import, only where it runs

    return frozenset(f.name for f in dataclasses.fields(AsyncEngineArgs))


def check_arguments(kwargs: Mapping[str, object]) -> None:
    """Let the installed vLLM check engine arguments without building an engine.

    Raises:
        Exception: Whatever vLLM raises for them (pydantic's ValidationError, TypeError, ValueError).
    """
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415

    known = accepted_arguments()
    AsyncEngineArgs(**{k: v for k, v in kwargs.items() if k in known}).create_engine_config()


def refuse_built(front: LLMEngine) -> None:
    """End and refuse an engine that was built and must not serve.

    Raises:
        ConfigError: vLLM itself chose workers that are Ray actors, or what it is built with is known to be
            answered wrongly.
    """
    names = ("distributed_executor_backend", "data_parallel_backend")
    config = getattr(front, "vllm_config", None)
    parallel = getattr(config, "parallel_config", None)
    try:
        refuse_ray_workers({name: getattr(parallel, name, None) for name in names})
        refuse_settings(config)
    except ConfigError:
        with contextlib.suppress(Exception):  # however that goes, it is refused
            bounded(lambda: front.engine_core.shutdown(timeout=0.0), _END_S)
        raise


def is_vllm(built: object) -> TypeGuard[LLM | LLMEngine]:
    """Say whether ``built`` is a frontend that this adapter understands."""
    return any(base.__module__.partition(".")[0] == "vllm" for base in type(built).__mro__) and (
        hasattr(built, "llm_engine") or (hasattr(built, "engine_core") and hasattr(built, "output_processor"))
    )
