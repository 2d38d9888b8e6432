"""The errors that rayguard raises.

Every error crosses process borders: all fields go positionally to ``super().__init__``, so that
pickle and Ray rebuild the same type with the same fields. Errors of a user's own code are never
replaced by one of these; see ``rayguard.recovery.incident.incident_of`` for what is attached to them.
"""

from __future__ import annotations


class RayguardError(Exception):
    """Base of everything that rayguard raises by itself."""


class ConfigError(RayguardError, ValueError):
    """A setting, policy or decorated thing that cannot work; raised before anything runs."""


class EngineHungError(RayguardError, TimeoutError):
    """The engine made no progress although it had work; the message holds the evidence."""


class WrongTokensError(RayguardError, RuntimeError):
    """An engine answered a greedy request otherwise than when it was asked again (``GuardPolicy.audit``).

    Fields: ``request`` (its id), ``tokens`` (how many the answer had), ``why`` (the first that differs).
    """

    def __init__(self, request: str, tokens: int, why: str) -> None:
        super().__init__(request, tokens, why)
        self.request = request
        self.tokens = tokens
        self.why = why

    def __str__(self) -> str:
        asked = f"greedy request {self.request!r}, answered with {self.tokens} tokens"
        return f"{asked}, was asked again: {self.why}"


class WeightsError(RayguardError, RuntimeError):
    """An engine could not be brought to the current weights, or reports other ones."""


class WeightSourceError(WeightsError):
    """The weight source could not say what is current: no new engine would change that."""


class RecoveryTimeoutError(RayguardError, TimeoutError):
    """A recovery step passed its deadline."""


class StateLostError(RayguardError, RuntimeError):
    """The state that a recycled actor handed over cannot be had: it must not go on as if it were new."""


class RequestError(RayguardError, ValueError):
    """One request cannot be answered as it is: it never reached an engine, and no other is disturbed.

    Fields: ``request`` (its id, empty when the options of a whole batch are meant), ``reason``.
    """

    def __init__(self, request: str, reason: str) -> None:
        super().__init__(request, reason)
        self.request = request
        self.reason = reason

    def __str__(self) -> str:
        return f"request {self.request!r}: {self.reason}" if self.request else self.reason


class QuarantinedError(RequestError):
    """Every engine that a request ran on died; it is given to no more of them."""


class WrongSessionError(RayguardError, RuntimeError):
    """The actor's process is another one than the caller means: what that one was told is gone with it."""


class DeadlineError(RayguardError, TimeoutError):
    """Requests were not answered by their deadline.

    Fields: ``request`` (id), ``waited_s``, ``state`` (what it was doing).
    """

    def __init__(self, request: str, waited_s: float, state: str) -> None:
        super().__init__(request, waited_s, state)
        self.request = request
        self.waited_s = waited_s
        self.state = state

    def __str__(self) -> str:
        return f"request {self.request!r} was not answered within {self.waited_s:.1f} s: {self.state}"


class NumericError(RayguardError, ArithmeticError):
    """A token id lay outside its embedding, or logits were not finite: a device-side assert, on a GPU.

    Fields: ``tensor`` (whose: the module's name), ``kind``, ``rank``, ``step``, ``row`` (of the flattened
    batch), ``value`` (the id; None for logits).
    """

    def __init__(self, tensor: str, kind: str, rank: int, step: int, row: int, value: int | None) -> None:
        super().__init__(tensor, kind, rank, step, row, value)
        self.tensor, self.kind, self.rank, self.step, self.row, self.value = (
            tensor,
            kind,
            rank,
            step,
            row,
            value,
        )

    def __str__(self) -> str:
        what = f"token id {self.value} lies outside" if self.value is not None else "logits are not finite in"
        return f"{what} {self.tensor} (row {self.row} of the batch, rank {self.rank}, step {self.step})"


class BatchError(RayguardError, RuntimeError):
    """Some prompts of a batch could not be answered; ``batch`` holds all that could.

    Fields: ``failed`` (prompts without a whole answer), ``first`` (the first error's text), ``batch``.
    """

    def __init__(self, failed: int, first: str, batch: object) -> None:
        super().__init__(failed, first, batch)
        self.failed = failed
        self.first = first
        self.batch = batch

    def __str__(self) -> str:
        return (
            f"{self.failed} prompts could not be answered, the first because: {self.first}. The others are "
            "in error.batch, the errors in error.batch.missing; partial='shrink' leaves such prompts out, "
            "partial='replace' takes others for them"
        )


class GaveUpError(RayguardError, RuntimeError):
    """The restart budget is spent: says the cause, what was tried and what to do.

    Fields: ``target``, ``cause``, ``tried`` (rung names, in order), ``advice``.
    """

    def __init__(self, target: str, cause: str, tried: tuple[str, ...], advice: str) -> None:
        super().__init__(target, cause, tried, advice)
        self.target = target
        self.cause = cause
        self.tried = tried
        self.advice = advice

    def __str__(self) -> str:
        tried = " -> ".join(self.tried) or "nothing (the policy allows no restart)"
        return f"{self.target} cannot be kept alive: {self.cause}. Tried: {tried}. What to do: {self.advice}"


class CallLostError(RayguardError, RuntimeError):
    """The process of an actor died while this call ran; the actor goes on, and the call was not made again.

    It may have taken effect outside the actor. Fields: ``target`` ("Trainer.step"), ``advice``.
    """

    def __init__(self, target: str, advice: str) -> None:
        super().__init__(target, advice)
        self.target = target
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.target} was cut off by the death of its process, and not made again. {self.advice}"


class EngineCallError(RayguardError, RuntimeError):
    """The engine died while this call to it ran. A new engine serves; the call was not made again.

    It may be what ended the engine, and may have taken effect. Requests that ran beside it go on. Fields:
    ``call`` ("collective_rpc('load')"), ``cause`` (of the death).
    """

    def __init__(self, call: str, cause: str) -> None:
        super().__init__(call, cause)
        self.call = call
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"the engine died while the call {self.call} ran, which may be why: {self.cause}. A new engine "
            "serves; the call was not made again: if it is not what ended the engine, make it anew"
        )


class GroupMemberError(RayguardError, RuntimeError):
    """The process of an actor died that was a member of a process group: alone it cannot take its place.

    The group as a whole is for whoever made it. Fields: ``target``, ``cause``.
    """

    def __init__(self, target: str, cause: str) -> None:
        super().__init__(target, cause)
        self.target = target
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"{self.target} was a member of a process group (torch.distributed), and its process died: "
            f"{self.cause}. It is not begun anew alone, since the others wait for one that has joined: make "
            "the group anew"
        )


class GangCallError(RayguardError, RuntimeError):
    """A call of a gang failed each time that it was made; the gang is as it was before it, and goes on.

    Fields: ``call`` ("Trainer.step"), ``causes`` (of each time), ``advice``.
    """

    def __init__(self, call: str, causes: tuple[str, ...], advice: str) -> None:
        super().__init__(call, causes, advice)
        self.call = call
        self.causes = causes
        self.advice = advice

    def __str__(self) -> str:
        told = "; then: ".join(self.causes)
        times = f"failed {len(self.causes)} times"
        return f"{self.call} {times}: {told}. The gang is as it was before. {self.advice}"


class CapabilityOffError(RayguardError, RuntimeError):
    """Something that stands on private names of Ray is off in this process; it was said once in the log.

    Fields: ``capability`` ("object scopes"), ``why`` ("Ray 2.61 moved ray._private.worker.Worker").
    """

    def __init__(self, capability: str, why: str) -> None:
        super().__init__(capability, why)
        self.capability = capability
        self.why = why

    def __str__(self) -> str:
        return f"{self.capability}: off, {self.why}"
