"""What becomes of the fault's own caller: who does something to an engine beside a batch gets an answer too.

Pure: what it was told and what an undisturbed one was told in; what is amiss out. Doing it is ``acts``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.benchmarks.trials.plan import Fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.benchmarks.trials.plan import Trial

NOTICE_S = 60.0  # for a fault to be noticed, on a machine that is very busy
CALL_S = 3.0  # the deadline that the caller of a hung call sets
SLACK_S = 30.0  # for its answer to come, beyond that deadline
_IN_CHAIN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A value, or an error: the names of its types, those of what it was raised from too, and its text."""

    what: str  # was done
    value: Any = None
    kinds: tuple[str, ...] = ()
    text: str = ""
    after_s: float = 0.0

    @classmethod
    def of(cls, what: str, error: BaseException, after_s: float) -> Told:
        """Return what an error says."""
        kinds: dict[str, None] = {}
        link: BaseException | None = error
        for _ in range(_IN_CHAIN):
            if link is None:
                break
            kinds.update(dict.fromkeys(kind.__name__ for kind in type(link).__mro__[:-2]))
            wrapped = getattr(link, "cause", None)
            link = wrapped if isinstance(wrapped, BaseException) else link.__cause__
        return cls(what=what, kinds=tuple(kinds), text=str(error), after_s=after_s)

    def __str__(self) -> str:
        said = f"{self.kinds[0]}: {self.text[-300:]}" if self.kinds else repr(self.value)[:200]
        return f"{self.what} -> {said} after {self.after_s:.2f} s"


def way(trial: Trial) -> str:
    """Return the way in which a fault is brought about, of those that there are."""
    ways = WAYS.get(trial.fault, ("",))
    return ways[trial.variant % len(ways)]


WAYS = {
    Fault.UNENCODABLE: ("pool", "engine"),
    Fault.KILLING_CALL: ("exit_now", "get_kv_cache_spec", "update_weight_version"),
    Fault.HUNG_CALL: ("its caller's deadline", "vLLM's deadline"),
    Fault.MISFIT_PUSH: ("misshapen", "missing", "foreign"),
    Fault.KILL_ASLEEP: ("keep", "wait", "abort"),
    Fault.KILL_IN_SLEEP: ("keep", "wait", "abort"),
    Fault.KILL_IN_WAKE: ("keep", "wait", "abort"),
    Fault.KILL_RANK: ("0", "1"),
}
_ERROR = {  # what the caller must get: any of these types, with this in its text
    (Fault.UNENCODABLE, "pool"): (("RequestError",), "seed"),
    (Fault.UNENCODABLE, "engine"): (("VLLMValidationError", "ValueError"), "seed"),
    (Fault.KILLING_CALL, "exit_now"): (("EngineCallError",), "exit_now"),
    (Fault.KILLING_CALL, "get_kv_cache_spec"): (("EngineCallError",), "get_kv_cache_spec"),
    (Fault.KILLING_CALL, "update_weight_version"): (("RequestError",), "must be text"),
    (Fault.HUNG_CALL, "its caller's deadline"): (("TimeoutError", "EngineCallError"), ""),
    (Fault.HUNG_CALL, "vLLM's deadline"): (("Exception",), ""),
    (Fault.MISFIT_PUSH, "misshapen"): (("WeightsError",), "down_proj"),
    (Fault.MISFIT_PUSH, "missing"): (("WeightsError",), "down_proj"),
    (Fault.MISFIT_PUSH, "foreign"): (("WeightsError",), "of_another_model"),
}
_CUT_OFF = "EngineCallError"


def harmless(trial: Trial) -> bool:
    """Say whether the engine must not even be touched."""
    refused = trial.fault is Fault.KILLING_CALL and way(trial) == "update_weight_version"
    return refused or trial.fault in {Fault.UNENCODABLE, Fault.MISFIT_PUSH}


def amiss(trial: Trial, told: Sequence[Told], wanted: Any) -> list[str]:
    """Say what the fault's own caller got that he should not have got.

    ``wanted`` is the answer of an undisturbed engine, where there is one.
    """
    found = [str(one) for one in told if one.kinds and not _may_fail(trial, one)]
    due = _ERROR.get((trial.fault, way(trial)))
    if due is not None and told and not told[0].kinds:
        found.append(f"no error: {told[0]}")
    if wanted is not None:
        values = [one for one in told if one.what in {"stream", "ask"} and not one.kinds]
        found += [f"another answer than {wanted!r:.200}: {one}" for one in values if one.value != wanted]
    return found


def _may_fail(trial: Trial, told: Told) -> bool:
    due = _ERROR.get((trial.fault, way(trial)))
    if due is not None:
        kinds, text = due
        return not set(kinds).isdisjoint(told.kinds) and text in told.text
    if trial.fault is Fault.KILL_STREAM:
        return told.what == "stream" and "is a stream" in told.text
    if trial.fault in {Fault.KILL_IN_SLEEP, Fault.KILL_IN_WAKE}:
        return told.what.startswith("cut off") and _CUT_OFF in told.kinds
    return False


def unnoticed(trial: Trial, told: Sequence[Told], detect_s: float | None) -> list[str]:
    """Say that a fault was never noticed, where it was not: by an incident, or by an answer in time."""
    if trial.fault is Fault.KILL_OWNER:
        return []  # who notices that is Ray
    answers = [one for one in told if one.kinds]
    if trial.fault is Fault.HUNG_CALL:
        within_s, seen = CALL_S + SLACK_S, bool(answers)
    elif harmless(trial):
        within_s, seen = NOTICE_S, bool(answers)
    else:
        within_s, answers, seen = NOTICE_S, [], detect_s is not None
    after_s = answers[0].after_s if answers else detect_s or 0.0
    if not seen:
        return [f"nobody noticed {trial.fault.value}"]
    return [f"{trial.fault.value} was noticed after {after_s:.1f} s"] if after_s > within_s else []
