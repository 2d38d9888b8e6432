"""Asking a weight source, with a deadline; again where that may help."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from rayguard.engine.deadline import bounded
from rayguard.engine.weights.sources import CallbackWeights, HeldWeights
from rayguard.errors import WeightsError, WeightSourceError

if TYPE_CHECKING:
    from rayguard.engine.weights.sources import WeightSource
    from rayguard.engine.weights.version import Weights

_PASSING = frozenset({"ActorUnavailableError", "GetTimeoutError", "ObjectLostError", "RaySystemError"})


def fetch(source: WeightSource, held: str, deadline_s: float) -> Weights | HeldWeights | None:
    """Return what ``source`` says is current, or that it is what the asker holds (the digest ``held``).

    Raises:
        WeightSourceError: It failed or is too slow; one that may recover is asked again.
        WeightsError: What it says cannot be fetched.
    """
    ask = partial(source.current_unless, held) if isinstance(source, CallbackWeights) else source.current
    again = Retrying(
        retry=retry_if_exception(_may_pass),
        wait=wait_random_exponential(multiplier=0.2, max=5.0),
        stop=stop_after_delay(deadline_s),
        reraise=True,
    )
    try:
        fetched: Weights | HeldWeights | None = again(bounded, ask, deadline_s, "rayguard-weights")
    except TimeoutError as late:
        raise WeightSourceError(f"the weight source took over {deadline_s:.0f} s") from late
    except WeightsError:
        raise
    except Exception as error:
        raise WeightSourceError(f"the weight source failed: {type(error).__name__}: {error}") from error
    return fetched


def _may_pass(error: BaseException) -> bool:
    """Say whether asking again may help: a trainer that is restarting comes back, a dead one does not."""
    return any(kind.__name__ in _PASSING for kind in type(error).__mro__)
