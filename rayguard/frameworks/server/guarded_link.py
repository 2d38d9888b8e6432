"""One client of a trainer and its servers: calls are made again where a server was lost and is back.

- Nobody waits blindly: what a client retries by itself is cut to what a stale connection needs.
- A lost server is waited for until a deadline; then the client joins it again, the weights that were pushed
  last go to it first, and the call is made again. Starting it again is for whoever runs it (``rayguard
  run``).
- Before each call it is asked which process it is: one that was restarted unseen gets the weights first.
- A call that waits is watched by the server's progress, never by ``/health``.

What is different from client to client is a ``ClientShape``. What cannot be done ends as it would have
without us, with the error that it would have been.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

from rayguard.faults.diagnosis import Kind, Scope
from rayguard.frameworks import told
from rayguard.frameworks.server.kept_weights import KeptWeights
from rayguard.frameworks.server.lost_server import ServerLostError, is_lost, is_of_the_engine
from rayguard.frameworks.server.server_sign import Presence, ServerSign, is_ready, look
from rayguard.frameworks.server.watched_call import Patience, watched
from rayguard.recovery.incident import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from rayguard.frameworks.server.kept_weights import Args, Kwargs, Named

DEADLINE_S = 600.0  # a large model takes minutes to start
_TRIES = 3  # of one call: what ends as many servers is the call itself
_POLL_S = 0.5
_LOOK_AGAIN_S = 1.0  # between two looks where one push is hundreds of calls
_log = logging.getLogger("rayguard")
T = TypeVar("T")


class ClientShape(Protocol):
    """What one kind of client is like."""

    name: str

    def urls(self, client: object) -> Sequence[str]:
        """Return the base addresses of its servers."""
        ...

    def join(self, client: object, begin: Callable[[], object]) -> None:
        """Make the group for weights anew; ``begin`` calls ``init_communicator`` as it was called first."""
        ...


class GuardedLink:
    """Guards the calls of one client. Calls within a call go through as they are."""

    def __init__(self, client: object, shape: ClientShape, *, deadline_s: float = DEADLINE_S) -> None:
        self._client, self._shape, self._deadline_s = client, shape, deadline_s
        self.kept = KeptWeights()
        self.patience = Patience()
        self._join: Callable[[], object] | None = None
        self._lives: dict[str, str] = {}
        self._looked_at = float("-inf")
        self._busy = threading.local()
        self._lock = threading.RLock()  # over who joins; whoever has it has a deadline

    # -- what a client calls

    def begin(self, call: Callable[[], T]) -> T:
        """Make the group for weights (``init_communicator``), and remember how."""
        if self._within():
            return call()
        with self._inside():
            done = call()
        self._join = call
        self._note(self._signs())
        return done

    def ask(self, call: Callable[[], T], name: str) -> T:
        """Make a call that may be made again, and touches no device: it is watched from this thread."""
        if self._within():
            return call()

        def beside() -> T:
            with self._inside():
                return call()

        return self._guarded(lambda: watched(beside, self._signs, self.patience, name), always=True)

    def push(self, key: Hashable, name: str, call: Callable[..., T], args: Args, kwargs: Kwargs) -> T:
        """Push weights that are arguments."""
        if self._within():
            return call(self._client, *args, **kwargs)
        self.kept.keep(key, name, args, kwargs)
        return self._guarded(lambda: call(self._client, *args, **kwargs), always=False)

    def push_streamed(
        self, key: Hashable, name: str, call: Callable[..., object], args: Args, tensors: Named
    ) -> object:
        """Push weights that come one by one behind ``args``; what an error leaves of them is read too."""
        if self._within():
            return call(self._client, *args, tensors)
        coming = self.kept.reading(key, name, args, tensors)

        def first() -> object:
            try:
                return call(self._client, *args, coming)
            finally:
                for _ in coming:  # other ranks gather along, and whoever pushes again needs them all
                    pass

        def again() -> object:
            for _ in coming:  # where the first was not even begun
                pass
            return call(self._client, *self.kept.again(key)[1])

        tries = iter([first])
        return self._guarded(lambda: next(tries, again)(), always=True)  # noqa: PLW0108 - another each time

    # -- how

    def _guarded(self, call: Callable[[], T], *, always: bool) -> T:
        left = _TRIES
        while True:
            left -= 1
            try:
                with self._inside():
                    self._meet_current(always=always)
                    done = call()
                    if always:
                        self._require_same()
                    return done
            except Exception as error:
                if not left or not self._recovered(error):
                    raise

    def _meet_current(self, *, always: bool) -> None:
        """Bring a server that was restarted unseen to the current weights before it is asked anything."""
        with self._lock:
            now = time.monotonic()
            if not always and now - self._looked_at < _LOOK_AGAIN_S:
                return
            self._looked_at = now
            signs = self._signs()
            for url, sign in signs.items():
                if sign.presence is Presence.DOWN:
                    raise ConnectionError(f"nobody answers at {url}")
            changed = [url for url, sign in signs.items() if self._is_another(url, sign)]
            if changed:
                self._renew(changed, f"{' and '.join(changed)} was restarted unseen")
            self._note(signs)

    def _require_same(self) -> None:
        """Refuse an answer of a server that took the place of the one that was asked: a session asks twice.

        Raises:
            ServerLostError: It has other weights.
        """
        signs = self._signs()
        if any(self._is_another(url, sign) for url, sign in signs.items()):
            raise ServerLostError(f"{' or '.join(signs)} was restarted while a call was made")

    def _recovered(self, error: Exception) -> bool:
        """Wait for a lost server and join it again; say whether the call can be made again."""
        lost = is_lost(error)
        if not lost and not is_of_the_engine(error):
            return False
        with self._lock:
            signs = self._signs()
            if not lost and not self._goes_down(signs):
                self._tell_of_the_engine(error)
                return False
            return self._joined_again(error, " and ".join(signs))

    def _joined_again(self, error: Exception, where: str) -> bool:
        incident = told.opened(
            Kind.ENGINE_DEAD,
            Scope.ENGINE,
            f"the inference server at {where} was lost: {error!r:.300}",
            signature="server.lost",
            target=self._shape.name,
            advice=f"start it again: it is waited for up to {self._deadline_s:.0f} s",
        )
        told.still_open(incident)
        came = self._wait()
        if came is None:
            told.ended(incident, Outcome.FAILED, remedy="wait", notes=("it did not come back in time",))
            return False
        # Who does not say which process it is may be a new one: nobody may be served by old weights.
        changed = [
            url for url, sign in came.items() if self._is_another(url, sign) or not self._known(url, sign)
        ]
        try:
            with self._inside():
                if changed:
                    self._renew(changed, "")
        except Exception as again:  # noqa: BLE001 - the user's call ends with its own error then
            note = f"it could not be joined: {again!r:.300}"
            told.ended(incident, Outcome.FAILED, remedy="reconnect", notes=(note,))
            return False
        self._note(came)
        told.ended(incident, Outcome.RECOVERED, remedy="reconnect" if changed else "call_again")
        return True

    def _renew(self, urls: Sequence[str], why: str) -> None:
        """Join servers that begin anew, and push what was pushed last.

        Raises:
            ConnectionError: No copy of the weights was kept: nobody may be served by the old ones.
        """
        incident = None
        if why:
            incident = told.opened(
                Kind.ENGINE_DEAD,
                Scope.ENGINE,
                why,
                signature="server.restarted",
                target=self._shape.name,
            )
        if self.kept.why_none:
            raise ConnectionError(
                f"{' and '.join(urls)} has lost the trained weights, and {self.kept.why_none}"
            )
        if self._join is not None:
            self._shape.join(self._client, self._join)
        for method, args, kwargs in self.kept.made_again():
            getattr(self._client, method)(*args, **kwargs)
        if incident is not None:
            told.ended(incident, Outcome.RECOVERED, remedy="push_weights")

    def _wait(self) -> dict[str, ServerSign] | None:
        """Return how the servers look once all take requests, None where they do not in time."""
        until = time.monotonic() + self._deadline_s
        pause = threading.Event()
        while time.monotonic() < until:
            if all(is_ready(url) for url in self._shape.urls(self._client)):
                return self._signs()
            pause.wait(_POLL_S)
        return None

    def _goes_down(self, signs: dict[str, ServerSign]) -> bool:
        """Say whether a server that answered with an error ends, or has been replaced, soon after."""
        until, pause = time.monotonic() + self.patience.after_an_error_s, threading.Event()
        while time.monotonic() < until:
            for url, sign in signs.items():
                if sign.presence is Presence.DOWN or self._is_another(url, sign):
                    return True
            pause.wait(_POLL_S)
            signs = self._signs()
        return False

    def _tell_of_the_engine(self, error: Exception) -> None:
        incident = told.opened(
            Kind.ENGINE_INTERNAL_ERROR,
            Scope.ENGINE,
            f"the server answers, and fails: {error!r:.300}",
            signature="server.failing",
            target=self._shape.name,
            advice="its engine may be dead although /health is well: read its log, and restart it",
        )
        told.ended(incident, Outcome.ANSWERED, remedy="none")

    def _signs(self) -> dict[str, ServerSign]:
        return {url: look(url) for url in self._shape.urls(self._client)}

    def _known(self, url: str, sign: ServerSign) -> bool:
        return bool(self._lives.get(url) and sign.life)

    def _is_another(self, url: str, sign: ServerSign) -> bool:
        return self._known(url, sign) and self._lives[url] != sign.life

    def _note(self, signs: dict[str, ServerSign]) -> None:
        for url, sign in signs.items():
            if sign.life:
                self._lives[url] = sign.life
            elif sign.presence is Presence.UP and url not in self._lives:
                self._lives[url] = ""
                _log.warning(
                    "rayguard: the server at %s does not say which process it is: a restart of it is noticed "
                    "only where a call fails",
                    url,
                )

    def _within(self) -> bool:
        return bool(getattr(self._busy, "now", False))

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        before, self._busy.now = self._within(), True
        try:
            yield
        finally:
            self._busy.now = before
