"""The requests in flight on one vLLM frontend: their tokens to whoever keeps them, and back from there.

The frontend itself outlives its engine's core. What must outlive the frontend's process too is read off
every few engine steps (``output_state``) and handed to *keepers*: the token log, and the actor's pool.
A request that comes back with tokens from such a keeper goes on from them.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from rayguard.engine.continuation import Exact, drift
from rayguard.engine.vllm import output_state
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rayguard.engine.generated import Generated
    from rayguard.engine.vllm.interfaces import EngineCoreOutput, EngineCoreRequest, OutputProcessor

# Of one request. With the step or two that are on their way, the death of its process loses 16 at most.
UNSAVED_TOKENS = 12
UNSAVED_S = 0.1
_LEFT_S = 600.0  # an earlier process's requests come back within this time, or never
# Answered ones are kept a while: when the actor dies before its call returns, Ray makes the whole call again.
_ANSWERED_S = 60.0
_ANSWERED = 4096


class Keeper(Protocol):
    """Keeps tokens outside the frontend's process. Called on the frontend's thread; must be quick.

    A keeper that joins while requests are in flight is told of their tokens without a ``begin``, from the
    middle on: of such a request it keeps nothing.
    """

    def begin(self, request_id: str, fingerprint: str) -> None:
        """A request is in flight; one that is here already begins afresh."""

    def append(self, entries: Sequence[tuple[str, Generated]]) -> None:
        """These tokens came since the last time."""

    def end(self, request_ids: Iterable[str]) -> None:
        """These requests are answered or given up."""

    def behind(self, tokens: int) -> None:
        """So many tokens, of all requests together, have come and were not handed on yet."""


class Listener(Protocol):
    """Hears which requests come and how they end. Called on the frontend's thread; must be quick."""

    def began(self, request: EngineCoreRequest) -> None:
        """A request has come in, or begins afresh."""

    def answered(self, request: EngineCoreRequest, output: EngineCoreOutput) -> None:
        """A request got its last output, which the frontend has yet to see."""

    def aborted(self, request_id: str) -> None:
        """Nobody waits for a request any more."""


@dataclass(slots=True)
class RequestNote:
    """What happened to one request: where it was cut, how it drifted, why it had to begin afresh."""

    cuts: list[int] = field(default_factory=list)
    afresh: list[str] = field(default_factory=list)
    drift: str = ""


class InFlight:
    """What is in flight on one frontend. All methods on the frontend's thread."""

    def __init__(self, processor: OutputProcessor) -> None:
        self._processor = processor
        self.keepers: list[Keeper] = []
        self.audited: Listener | None = None
        self._read: dict[str, int] = {}  # internal id -> tokens that the keepers have
        self._begun: dict[str, str] = {}  # internal id -> the id by which keepers know it
        self._notes: dict[str, RequestNote] = {}
        self._questions: dict[str, str] = {}  # fingerprints that followers know
        self._priors: dict[str, Generated] = {}
        self._left: dict[str, tuple[str, Generated]] = {}
        self._left_until = 0.0
        self._pending: list[tuple[str, Generated]] = []
        self._answered: dict[str, float] = {}  # the oldest first
        self._unsaved = 0
        self._behind = 0
        self._saved_at = 0.0

    # -- what is known from elsewhere

    def keep(self, keeper: Keeper) -> None:
        """Tell ``keeper`` of what is in flight from now on."""
        self.keepers.append(keeper)

    def follow(self, request_id: str, prior: Generated | None = None, question: str = "") -> RequestNote:
        """Announce a request that is about to be made, with what is there of it; return its notes to come."""
        if prior is not None and len(prior):
            self._priors[request_id] = prior
        self._questions[request_id] = question
        return self._notes.setdefault(request_id, RequestNote())

    def unfollow(self, request_id: str) -> None:
        """Forget an announced request."""
        self._notes.pop(request_id, None)
        self._questions.pop(request_id, None)
        self._priors.pop(request_id, None)

    def left(self, found: Mapping[str, tuple[str, Generated]]) -> None:
        """Take what an earlier process of this actor left: (fingerprint, tokens) by request id."""
        self._left.update(found)
        self._left_until = time.monotonic() + _LEFT_S

    def prior_of(self, request: EngineCoreRequest, version: str) -> Generated | None:
        """Return what is there of a request that comes in, if it is of the weights in use; only once."""
        if not self._priors and not self._left:
            return None
        name = name_of(request)
        given = self._priors.pop(name, None)
        if given is not None:
            return given
        if not self._left or time.monotonic() > self._left_until:
            self._left.clear()
            return None
        fingerprint, found = self._left.get(name, ("", None))
        if found is None or fingerprint != (self._questions.get(name) or fingerprint_of(request)):
            return None
        del self._left[name]
        made_by = {made for made, _ in found.versions}
        return found if len(found) and (not version or made_by <= {version}) else None

    # -- what happens here

    def began(self, request: EngineCoreRequest) -> None:
        """Note a request that has come in."""
        if self.audited is not None:
            with harmless("audit"):
                self.audited.began(request)
        if not self.keepers:
            return
        name = name_of(request)
        fingerprint = self._questions.get(name) or fingerprint_of(request)
        if self._answered.pop(name, 0.0):  # asked again: what is left of its answer is not this one's
            self._pending = [entry for entry in self._pending if entry[0] != name]
        self._begun[request.request_id] = name
        self._read[request.request_id] = 0
        for keeper in self.keepers:
            with harmless("token_log"):
                keeper.begin(name, fingerprint)

    def cut(self, request: EngineCoreRequest, tokens: int, exact: Exact) -> None:
        """Note that a request goes on with another core, which is as ``exact``, after ``tokens`` tokens."""
        note = self._notes.get(name_of(request))
        if note is not None and tokens:
            note.cuts.append(tokens)
            note.drift = drift(request, exact) or note.drift

    def afresh(self, request: EngineCoreRequest, reason: str) -> None:
        """Note that a request begins afresh."""
        note = self._notes.get(name_of(request))
        if note is not None:
            note.cuts.clear()
            note.afresh.append(reason)
        if request.request_id in self._begun:
            self.began(request)

    def answered(self, request: EngineCoreRequest, output: EngineCoreOutput, version: str | None) -> None:
        """Note that a request got its last output, which the frontend has yet to see."""
        if self.audited is not None:
            with harmless("audit"):
                self.audited.answered(request, output)
        name = self._begun.pop(request.request_id, None)
        if name is None:
            return
        read = self._read.pop(request.request_id, 0)
        state = self._processor.request_states.get(request.request_id)
        params = request.sampling_params
        if state is None or state.detokenizer is None or params is None:
            return
        with harmless("token_log"):
            last = output_state.of_output(output, version, output_state.width_of(params) or 0)
            rest = output_state.read(state, read, params).plus(last)
            self._pending.append((name, rest))
            self._answered[name] = time.monotonic()

    def aborted(self, request_id: str) -> None:
        """Note that nobody waits for a request any more."""
        if self.audited is not None:
            self.audited.aborted(request_id)
        name = self._begun.pop(request_id, None)
        self._read.pop(request_id, None)
        if name is not None:
            self.release((name,))

    def release(self, names: Iterable[str]) -> None:
        """Let the keepers forget requests that were answered, or are no longer wanted."""
        names = tuple(names)
        for keeper in self.keepers:
            with harmless("token_log"):
                keeper.end(names)

    def came(self, longest: int, tokens: int) -> None:
        """Note that an engine step brought ``tokens`` tokens, up to ``longest`` of them for one request."""
        self._unsaved += longest
        self._are_behind(self._behind + tokens)

    def save_if_due(self, requests: Mapping[str, EngineCoreRequest]) -> None:
        """Hand new tokens of ``requests`` to the keepers, every few steps."""
        if not self.keepers or not self._unsaved:
            return
        now = time.monotonic()
        if self._unsaved >= UNSAVED_TOKENS or now - self._saved_at >= UNSAVED_S:
            with harmless("token_log"):
                self.save(requests)
            self._unsaved, self._saved_at = 0, now

    def save(self, requests: Mapping[str, EngineCoreRequest]) -> None:
        """Hand all new tokens to the keepers now."""
        entries, self._pending = self._pending, []
        for request_id, name in list(self._begun.items()):
            more = self._unread(request_id, requests)
            if more is not None:
                entries.append((name, more))
        if entries:
            for keeper in self.keepers:
                _hand_on(keeper, entries)
        self._are_behind(0)
        self._forget_answered()

    def _are_behind(self, tokens: int) -> None:
        self._behind = tokens
        for keeper in self.keepers:
            with harmless("token_log"):
                keeper.behind(tokens)

    def _unread(self, request_id: str, requests: Mapping[str, EngineCoreRequest]) -> Generated | None:
        with harmless("token_log"):
            state, request = self._processor.request_states.get(request_id), requests.get(request_id)
            params = None if request is None else request.sampling_params
            if state is None or params is None or state.detokenizer is None:
                return None
            read, received = self._read[request_id], state.detokenizer.num_output_tokens()
            if received <= read:
                return None
            self._read[request_id] = received
            return output_state.read(state, read, params)
        self.aborted(request_id)  # of this request only, and not its caller's concern
        return None

    def _forget_answered(self) -> None:
        old, until = [], time.monotonic() - _ANSWERED_S
        while self._answered and (
            len(self._answered) > _ANSWERED or next(iter(self._answered.values())) < until
        ):
            old.append(next(iter(self._answered)))
            del self._answered[old[-1]]
        if old:
            self.release(old)


def _hand_on(keeper: Keeper, entries: Sequence[tuple[str, Generated]]) -> None:
    with harmless("token_log"):
        keeper.append(entries)
        return
    # Nothing may be kept behind a hole: a request would go on from tokens it never had.
    with harmless("token_log"):
        keeper.end([name for name, _ in entries])


def name_of(request: EngineCoreRequest) -> str:
    """Return the caller's id of a request; for one of several completions with its index before it.

    vLLM gives each request an id of its own, ``<caller's>-<8 characters>``, and ``<index>_`` before that for
    one of ``n > 1`` (vllm/v1/engine/input_processor.py, parallel_sampling.py).
    """
    own, given = request.request_id, request.external_req_id or request.request_id
    if own.startswith(given):
        return str(given)
    index, _, rest = own.partition("_")
    return f"{index}_{given}" if rest.startswith(given) and index.isdecimal() else str(own)


def fingerprint_of(request: EngineCoreRequest) -> str:
    """Return the same text for the same question: prompt and sampling options."""
    asked = _encode()((request.prompt_token_ids, request.sampling_params, str(request.lora_request)))
    return hashlib.blake2b(asked, digest_size=16).hexdigest()


@lru_cache(maxsize=1)
def _encode() -> Callable[[object], bytes]:
    from msgspec.msgpack import Encoder  # noqa: PLC0415 - comes with vLLM

    return Encoder().encode
