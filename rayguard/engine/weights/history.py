"""What an engine slot served last, and which versions failed: by that a push is judged beforehand.

One version is kept, the one that was proved last: for an engine that a failed push left half loaded, and for
one that is rebuilt while the source offers an unfit version. Bytes stay in this process's memory as they were
pushed (no copy; not where they are more than a quarter of the memory that is left); of a path only its name
and digest: files that were changed since are not used. It does not outlive the process. Where the engine
does, its workers say which tensors they were sent.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.engine.weights.layout import misfit
from rayguard.engine.weights.version import Weights, check
from rayguard.errors import WeightsError
from rayguard.harmless import harmless
from rayguard.memory.probes.node import NodeProbe

if TYPE_CHECKING:
    from rayguard.engine.protocol import Engine
    from rayguard.engine.weights.layout import Layout
    from rayguard.engine.weights.proof import Proof

_log = logging.getLogger("rayguard")
# What a failed load counts: an engine that died or hung in it may have done so by chance. Two, or three.
_SAID, _SEEN, _LIMIT = 3, 2, 6
_REMEMBERED = 8  # versions that failed
_SHARE = 4


class PushHistory:
    """For one engine slot, its standby included."""

    def __init__(self) -> None:
        self.built_in = False  # the source said that the model's own weights are current
        self._kept: Weights | None = None
        self._last = ""  # the version that was proved last
        self._layout: Layout = {}
        self._failures: OrderedDict[str, tuple[int, str]] = OrderedDict()  # by digest: points, and the last

    def goes_on(self, had: Proof) -> Proof:
        """Know what an earlier process pushed, as an engine that was taken over says; return its proof."""
        if not self._layout and had.layout:
            self._last, self._layout = had.version, had.layout
        return replace(had, layout={})

    def judge(self, wanted: Weights, engine: Engine) -> None:
        """Refuse weights that no engine should get.

        Raises:
            WeightsError: They are malformed, hold NaN, have other tensors than those that serve, or could
                not be loaded before.
        """
        check(wanted)
        known, served = self._layout, f"weights {self._last!r}"
        if not known:
            known, served = engine.layout(), "the model's own"
        if differs := misfit(wanted.names(), known, complete=bool(self._layout)):
            raise WeightsError(
                f"weights {wanted.version!r} do not fit, compared with {served}: {differs}. No engine was "
                "touched; send every tensor of the model, in its shape, with each version"
            )
        if self.gave_up(wanted):
            raise WeightsError(
                f"weights {wanted.version!r} are refused, as engines failed to load them again and again "
                f"({self._failures[wanted.digest][1]}): offer another version"
            )

    def failures(self, wanted: Weights) -> int:
        """Return what failed loads of ``wanted`` count together."""
        return self._failures.get(wanted.digest, (0, ""))[0]

    def gave_up(self, wanted: Weights) -> bool:
        """Whether engines failed too often to load ``wanted``."""
        return self.failures(wanted) >= _LIMIT

    def failed(self, wanted: Weights, error: Exception) -> None:
        """``wanted`` could not be loaded."""
        points = self.failures(wanted) + (_SAID if isinstance(error, WeightsError) else _SEEN)
        self._failures.pop(wanted.digest, None)
        self._failures[wanted.digest] = (points, f"{type(error).__name__}: {error}")
        while len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)

    def proved(self, weights: Weights) -> None:
        """``weights`` are what the engine that serves proved to hold."""
        self._failures.pop(weights.digest, None)
        self.built_in, self._last, self._kept = False, weights.version, None
        with harmless("weights"):
            self._layout = weights.names()
            size = len(weights.payload or b"")
            if size * _SHARE <= NodeProbe().left():
                self._kept = weights
            else:
                _log.info("rayguard: no room to keep weights %r for a rebuild", weights.version)

    def kept(self) -> Weights | None:
        """Return the last version that was proved; None where there is none, or its files were changed."""
        kept = self._kept
        if kept is None or kept.path is None:
            return kept
        with contextlib.suppress(WeightsError):
            now = Weights(kept.version, path=kept.path)  # reads its files again
            return now if now.digest == kept.digest else None
        return None
