"""A call to a server that waits as long as the server makes progress, however long that is.

A POST has no deadline in any of the clients: where the server freezes, or its machine goes without a word, it
waits for ever. A deadline of its own would end long generations instead. So the call runs beside, and the
server is looked at. For calls that touch no device alone: those need the thread that they belong to.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from rayguard.faults.diagnosis import Kind, Scope
from rayguard.frameworks import told
from rayguard.frameworks.server.lost_server import ServerHungError, ServerLostError
from rayguard.frameworks.server.server_sign import Presence
from rayguard.recovery.incident import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rayguard.frameworks.server.server_sign import ServerSign
    from rayguard.recovery.incident import Incident

    Signs = Callable[[], Mapping[str, ServerSign]]

T = TypeVar("T")


@dataclass(slots=True)
class Patience:
    """How long a server may be silent: told after one time, given up after the other.

    ``untold_s``: where it does not tell how far it has come, so that only the time of earlier calls is known.
    """

    silent_s: float = 300.0
    over_s: float = 900.0
    untold_s: float = 1800.0
    times: float = 10.0  # the longest call so far, where progress is not told
    look_s: float = 2.0
    after_an_error_s: float = 15.0  # a server whose engine died says so first, and ends then
    longest_s: float = 0.0

    def limits(self, *, told: bool) -> tuple[float, float]:
        """Return when silence is told, and when it is over."""
        if told:
            return self.silent_s, self.over_s
        first = max(self.untold_s, self.times * self.longest_s)
        return first, first + self.over_s


class _Call(Generic[T]):
    """One call in a thread of its own."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self.done = threading.Event()
        self.answer: T | None = None
        self.error: BaseException | None = None
        self._call = call
        threading.Thread(target=self._run, name=f"rayguard-{name}", daemon=True).start()

    def _run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as error:  # noqa: BLE001 - of the caller, who gets it
            self.error = error
        finally:
            self.done.set()

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return cast("T", self.answer)


def watched(call: Callable[[], T], signs: Signs, patience: Patience, name: str) -> T:
    """Return what ``call`` returns; look at its servers by ``signs`` meanwhile.

    Raises:
        ServerLostError: A server went, and the call did not notice.
        ServerHungError: No server made progress for longer than ``patience`` allows.
    """
    made, began = _Call(call, name), time.monotonic()
    if made.done.wait(patience.look_s):  # most calls: the server is not even asked
        patience.longest_s = max(patience.longest_s, time.monotonic() - began)
        return made.result()
    silence = _Silence(signs(), began, patience)
    while not made.done.wait(patience.look_s):
        silence.look(signs(), time.monotonic())
    silence.close()
    patience.longest_s = max(patience.longest_s, time.monotonic() - began)
    return made.result()


class _Silence:
    """Since when the servers of a call have made no progress."""

    def __init__(self, signs: Mapping[str, ServerSign], began: float, patience: Patience) -> None:
        self._signs, self._moved_at, self._patience = signs, began, patience
        self._incident: Incident | None = None
        self._down = 0

    def look(self, signs: Mapping[str, ServerSign], now: float) -> None:
        """Take in how the servers look now.

        Raises:
            ServerLostError: One of them went.
            ServerHungError: They have been silent for too long.
        """
        self._refuse_lost(signs)
        moved = any(
            one.progress is not None and one.progress != self._signs[url].progress
            for url, one in signs.items()
        )
        if moved:
            self._moved_at = now
            self.close()
        self._signs = {
            url: one if one.progress is not None else self._signs[url] for url, one in signs.items()
        }
        known = any(one.progress is not None for one in self._signs.values())
        first, last = self._patience.limits(told=known)
        silent_s = now - self._moved_at
        if silent_s >= first and self._incident is None:
            self._incident = told.opened(
                Kind.ENGINE_HANG,
                Scope.ENGINE,
                f"the inference server has made no progress for {silent_s:.0f} s while a call waits for it",
                signature="server.silent",
                target="inference server",
                advice=f"it is given up after {last:.0f} s; restart it, and the call is made again",
            )
            told.still_open(self._incident)
        if silent_s >= last:
            if self._incident is not None:
                told.ended(self._incident, Outcome.FAILED, remedy="none")
                self._incident = None
            raise ServerHungError(f"no server made progress for {silent_s:.0f} s")

    def close(self) -> None:
        """It goes on."""
        if self._incident is not None:
            told.ended(self._incident, Outcome.RECOVERED, remedy="none", notes=("it went on by itself",))
            self._incident = None

    def _refuse_lost(self, signs: Mapping[str, ServerSign]) -> None:
        for url, sign in signs.items():
            before = self._signs[url].life
            if before and sign.life and before != sign.life:
                raise ServerLostError(f"the server at {url} is another process than when the call began")
        down = [url for url, sign in signs.items() if sign.presence is Presence.DOWN]
        self._down = self._down + 1 if down else 0
        if self._down > 1:  # seen twice: a port may be full for a moment
            raise ServerLostError(f"nobody answers at {down[0]} any more")
