"""Safe settings: what each rung of the ladder means to an engine, in vLLM's own argument names.

Pure. Which rung comes when is ``rayguard.recovery``; whether the installed vLLM accepts the result is
asked by ``rayguard.engine.vllm.arguments`` before an engine is built with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rayguard.errors import ConfigError
from rayguard.options import explained

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Values = dict[str, Any]

# vLLM's defaults for the arguments that safe settings touch (vllm/engine/arg_utils.py, EngineArgs). They
# are handed out even when nothing is overridden, so that a recipe which also passes one of them by hand
# fails at its first call ("multiple values for keyword argument") and not at the first restart.
DEFAULTS: Mapping[str, object] = {
    "async_scheduling": None,
    "enable_chunked_prefill": None,
    "max_num_batched_tokens": None,
    "enable_prefix_caching": None,
    "enforce_eager": False,
    "max_num_seqs": None,
}


def _chunked_prefill_off(now: Values) -> Values:
    # Without chunks a whole prompt must fit one step: vLLM refuses a smaller token budget.
    longest, budget = now.get("max_model_len"), now.get("max_num_batched_tokens")
    if isinstance(longest, int) and isinstance(budget, int):
        return {"enable_chunked_prefill": False, "max_num_batched_tokens": max(longest, budget)}
    return {"enable_chunked_prefill": False}


def _fewer_sequences(now: Values) -> Values:
    lowered: Values = {"max_num_seqs": max(1, int(now.get("max_num_seqs") or 128) // 4)}
    share = now.get("gpu_memory_utilization")
    if isinstance(share, float):
        lowered["gpu_memory_utilization"] = round(max(0.1, share - 0.05), 3)
    return lowered


SAFE_SETTINGS: Mapping[str, Callable[[Values], Values]] = {
    "async_scheduling_off": lambda _now: {"async_scheduling": False},
    "chunked_prefill_off": _chunked_prefill_off,
    "prefix_caching_off": lambda _now: {"enable_prefix_caching": False},
    "eager": lambda _now: {"enforce_eager": True},
    "fewer_sequences": _fewer_sequences,
    "one_sequence": lambda _now: {"max_num_seqs": 1},
}


_FITTED = (-1, "auto")  # to the memory that is there, by vLLM


def refuse_ray_workers(values: Mapping[str, object]) -> None:
    """Refuse an engine whose workers would be Ray actors.

    They carry no mark, leave no evidence and prove no weights: a death of one would be nobody's.

    Raises:
        ConfigError: One of ``values``, an engine's arguments or what it took, says so.
    """
    for name, other in (("distributed_executor_backend", "'mp' or 'uni'"), ("data_parallel_backend", "'mp'")):
        value = values.get(name)
        if value == "ray" or (isinstance(value, type) and value.__name__.startswith("Ray")):
            raise ConfigError(
                f"{name}={value!r}: workers that are Ray actors of their own cannot be kept alive with their "
                f"engine. Give the actor all GPUs of the engine and pass {name}={other} to "
                "settings.as_kwargs(...); in a placement group, vLLM takes Ray where nothing is said"
            )


@explained
@dataclass(slots=True)
class EngineSettings:
    """What ``build_engine(settings)`` gets: the safe settings in force.

    ``facts`` holds what a running engine was seen to use (``max_model_len`` and the like), for settings
    that depend on others; ``accepted`` the argument names that the installed engine knows (None: any).
    ``standby`` says that the engine is to wait beside the one that serves: in the same memory.
    """

    applied: tuple[str, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    accepted: frozenset[str] | None = None
    extra: Mapping[str, object] = field(default_factory=dict)  # what rayguard itself needs; yours comes first
    standby: bool = False
    refuse: Callable[[Values], None] | None = None  # raises when there is no room for these arguments
    check: Callable[[Values], None] | None = None  # raises for arguments that the engine does not have
    base: Values | None = None  # what the recipe passed to as_kwargs; None: it never asked
    given: Values | None = None  # what it got

    def __post_init__(self) -> None:
        """Refuse a name that is no safe setting."""
        unknown = [name for name in self.applied if name not in SAFE_SETTINGS]
        if unknown:
            raise ConfigError(
                f"no such safe setting: {', '.join(unknown)}; there are {', '.join(SAFE_SETTINGS)}"
            )

    def overrides(self, base: Mapping[str, object]) -> Values:
        """Return what the safe settings change, given your own values ``base``."""
        now: Values = {**self.facts, **{k: v for k, v in base.items() if v is not None}}
        changed: Values = {}
        for name in self.applied:
            step = SAFE_SETTINGS[name]({**now, **changed})
            changed.update({k: v for k, v in step.items() if self.accepted is None or k in self.accepted})
        return changed

    def as_kwargs(self, **base: Any) -> Values:
        """Return the engine's arguments: your own values, with the safe settings in force over them.

        Pass your own values here (``settings.as_kwargs(max_num_seqs=64)``) and not beside it: a safe
        setting must be able to lower them.

        Raises:
            ConfigError: The engine's workers would be Ray actors, or it has no such argument or model.
        """
        self.base = base
        refuse_ray_workers(base)
        if self.check is not None:
            self.check(base)
        known = {k: v for k, v in DEFAULTS.items() if self.accepted is None or k in self.accepted}
        wanted = {**known, **self.extra, **base, **self.overrides(base)}
        if not self.applied and base.get("max_model_len") in _FITTED and "max_model_len" in self.facts:
            wanted["max_model_len"] = self.facts[
                "max_model_len"
            ]  # as the first one: requests were let in by it
        if self.refuse is not None:
            self.refuse({**self.facts, **wanted})
        self.given = dict(wanted)
        return wanted
