"""Which weights an engine must have before it serves, and the proof that it has them.

The weights themselves are ``rayguard.engine.weights``; loading them is each adapter's ``push``.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from rayguard.engine.bounded import bounded
from rayguard.engine.sources import CallbackWeights, Held
from rayguard.engine.weights import check, verify
from rayguard.errors import WeightsError, WeightSourceError

if TYPE_CHECKING:
    from rayguard.engine.protocol import Engine
    from rayguard.engine.sources import WeightSource
    from rayguard.engine.weights import Weights


_STILL_THERE_S = 10.0  # for a question; an engine that is too busy for it gets the weights again
_PASSING = frozenset({"ActorUnavailableError", "GetTimeoutError", "ObjectLostError", "RaySystemError"})


class CurrentWeights:
    """Brings engines to the version that the source says is current.

    Invariant: ``version`` is what the last engine proved to have, never what was only sent.
    """

    def __init__(self, source: WeightSource | None, deadline_s: float) -> None:
        self._source = source
        self._deadline_s = deadline_s
        self.version = ""
        self._digest = ""  # of that version, as long as it is proved
        self.pending = False  # an engine serves nobody until this is False

    def required(self) -> None:
        """A new engine has the weights it was built with: others are needed, if there is a source."""
        self.pending = self._source is not None
        self.version = self._digest = ""

    def bring(self, engine: Engine) -> str:
        """Load the current version into ``engine`` and read back what it has now.

        Where ``engine`` proves that it has that version already, nothing is sent, nor fetched if the source
        can tell.

        Raises:
            WeightSourceError: The source failed or is too slow; one that may recover is asked again.
            WeightsError: The weights are unfit (NaN, malformed), or the engine reports others than it was
                sent.
            RecoveryTimeoutError: The deadline passed.
        """
        wanted = self._fetch(self._digest)
        if wanted is not None and self._is_held(wanted, engine):
            return self.version
        if isinstance(wanted, Held):
            wanted = self._fetch("")
        if wanted is None or isinstance(wanted, Held):
            self.pending = False
            return self.version
        check(wanted)
        self.pending = True  # from here on the engine may be half loaded
        self.version = self._digest = ""
        verify(wanted, engine.push(wanted, deadline_s=self._deadline_s))
        self.version, self._digest, self.pending = wanted.version, wanted.digest, False
        return self.version

    def _is_held(self, wanted: Weights | Held, engine: Engine) -> bool:
        """Ask the engine, not only our own book: what changed it since may have passed us by."""
        if self.pending or not self._digest or wanted.version != self.version:
            return False
        if not isinstance(wanted, Held) and wanted.digest != self._digest:
            return False
        with contextlib.suppress(Exception):  # a dead engine: the push says so, and what follows from it
            receipts = engine.receipts(deadline_s=min(_STILL_THERE_S, self._deadline_s))
            return bool(receipts) and all(
                (receipt.version, receipt.digest) == (self.version, self._digest) for receipt in receipts
            )
        return False

    def _fetch(self, held: str) -> Weights | Held | None:
        source = self._source
        if source is None:
            return None
        ask = partial(source.current_unless, held) if isinstance(source, CallbackWeights) else source.current
        again = Retrying(
            retry=retry_if_exception(_may_pass),
            wait=wait_random_exponential(multiplier=0.2, max=5.0),
            stop=stop_after_delay(self._deadline_s),
            reraise=True,
        )
        try:
            fetched: Weights | Held | None = again(bounded, ask, self._deadline_s, "rayguard-weights")
        except TimeoutError as late:
            raise WeightSourceError(f"the weight source took over {self._deadline_s:.0f} s") from late
        except WeightsError:
            raise
        except Exception as error:
            raise WeightSourceError(f"the weight source failed: {type(error).__name__}: {error}") from error
        return fetched


def _may_pass(error: BaseException) -> bool:
    """Say whether asking again may help: a trainer that is restarting comes back, a dead one does not."""
    return any(kind.__name__ in _PASSING for kind in type(error).__mro__)
