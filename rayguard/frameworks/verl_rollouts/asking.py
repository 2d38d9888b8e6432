"""One question to an actor of verl's, with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from rayguard.frameworks.verl_rollouts.interfaces import CallReference

_T = TypeVar("_T")


async def asked(handle: object, function: Callable[..., _T], *args: object, within_s: float) -> _T | None:
    """Have an actor run ``function`` with itself and ``args``; None where it gives no answer in time."""
    from ray.exceptions import RayError  # noqa: PLC0415 - where verl is, Ray is

    from rayguard.ray_internals.actor_classes import run_in_actor  # noqa: PLC0415 - as above

    with contextlib.suppress(asyncio.TimeoutError, RayError):
        answer = cast("CallReference", run_in_actor(handle, function, *args)).future()
        return await asyncio.wait_for(asyncio.wrap_future(cast("Future[_T]", answer)), within_s)
    return None
