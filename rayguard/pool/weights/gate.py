"""Which engines of a pool may serve, by their weights: reports, pushes and votes in, who may serve out. Pure.

Loading and proving weights inside an actor is ``rayguard.engine.weights``; the push to all is ``push``; the
vote is ``canary_vote``; whether an engine lives at all is ``rayguard.pool.fleet``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_HISTORY = 64


class WeightGate:
    """Which version each engine has, and how old the oldest may be that serves.

    Invariant: an engine may serve only if its version is ``current``, one of the ``max_lag`` before it, or
    newer than any that this pool has seen (an actor that restarted has what is current now); not before it
    was compared with others that took it (or that took too long), nor while others contradict it.
    """

    def __init__(self, max_lag: int) -> None:
        self.current = ""
        self.max_lag = max_lag
        self._history: list[str] = []
        self._of: dict[str, str] = {}
        self._before: dict[str, str] = {}  # of engines that take others now, until those are compared
        self._doubted: dict[str, str] = {}  # the version with which others contradict an engine

    def of(self, name: str) -> str:
        """Return the version that an engine reported last."""
        return self._of.get(name, "")

    def may_serve(self, name: str) -> bool:
        """Say whether an engine that lives may be given requests."""
        version = self.of(name)
        compared = self._before.get(name, version) == version
        return self.allowed(version) and compared and self._doubted.get(name) != version

    def allowed(self, version: str) -> bool:
        """Say whether a version is current enough."""
        if version not in self._history or self.current not in self._history:
            return bool(version) or not self.current
        return self._history.index(version) >= self._history.index(self.current) - self.max_lag

    def mixes(self, name: str, made_by: Iterable[str]) -> bool:
        """Say whether ``name`` would go on from tokens of other weights than its own, and may not."""
        own = self.of(name)
        return self.max_lag == 0 and bool(own) and not {own}.issuperset(made_by)

    # -- reports

    def joined(self, name: str, version: str) -> None:
        """A life of an engine begins with these weights; what was held against the last one is void."""
        self._of[name] = version
        self._before.pop(name, None)
        self._doubted.pop(name, None)
        self._know(version)

    def reported(self, name: str, version: str) -> bool:
        """Take in an engine's report; False where it says nothing new, or comes late and is old."""
        known = self.of(name)
        if self._older(version, known):
            return False
        self._of[name] = version
        self._know(version)  # also of one that took it in a push which is not over
        return version != known

    def _know(self, version: str) -> None:
        """Put a version that was never seen behind those that were: it can only be newer."""
        if version and version not in self._history:
            self._history = [*self._history, version][-_HISTORY:]
        self.current = self.current or version

    def _older(self, version: str, than: str) -> bool:
        if version not in self._history or than not in self._history:
            return False
        return self._history.index(version) < self._history.index(than)

    # -- pushes

    def pushing(self, name: str) -> str:
        """An engine is given other weights: return those before. It serves with new ones once compared."""
        self._before[name] = before = self.of(name)
        return before

    def taken(self, name: str, version: str) -> None:
        """A push to an engine succeeded."""
        self._of[name] = version

    def pushed(self, newest: str) -> None:
        """A push to all is over: this is current now."""
        self._know(newest)
        self.current = newest

    # -- votes

    def wait_no_more(self, name: str, before: str) -> bool:
        """The comparison of the push that found ``before`` takes too long; False where it is over."""
        waits = self._before.get(name) == before
        if waits:
            del self._before[name]
        return waits

    def compared(self, name: str, version: str) -> bool:
        """Engines with ``version`` were compared; False for one that takes another one already."""
        if self.of(name) != version or self._before.get(name) == version:
            return False
        self._before.pop(name, None)
        return True

    def is_doubted(self, name: str, version: str) -> bool:
        """Say whether others contradict an engine with this version."""
        return self._doubted.get(name) == version

    def doubt(self, names: Iterable[str], version: str) -> None:
        """Others contradict these: they do not serve with that version."""
        self._doubted.update(dict.fromkeys(names, version))

    def clear(self, name: str, version: str) -> None:
        """An engine was loaded once more, or nobody knows better: it may serve."""
        if self.is_doubted(name, version):
            del self._doubted[name]
