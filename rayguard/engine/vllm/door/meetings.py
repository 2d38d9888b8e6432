"""Which requests an engine has and had, as far as one may spoil another one; and who is refused for it.

What spoils what is ``known_wrong``'s table.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rayguard.config import Settings
from rayguard.engine.vllm.door import finite
from rayguard.engine.vllm.door.finite import not_finite
from rayguard.engine.vllm.door.known_wrong import BY_TOKEN, REQUESTS, SETTINGS, EngineTraits, WrongAlone
from rayguard.errors import ConfigError
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

    from rayguard.engine.vllm.door.known_wrong import WrongTogether
    from rayguard.engine.vllm.interfaces import EngineCoreRequest, VllmConfig
    from rayguard.engine.vllm.kept.condition import Call

_ALL_THE_SAME = "To have it all the same: RAYGUARD_ALLOW="
_ADAPTER = (
    "adapter_"  # how the files of an adapter begin (peft: adapter_config.json, adapter_model.safetensors)
)


def allowed() -> frozenset[str]:
    """Return what the user wants all the same (``RAYGUARD_ALLOW=one,two``).

    Raises:
        ConfigError: A name is none that is known.
    """
    names = frozenset(name.strip() for name in Settings().allow.split(",") if name.strip())
    known = {finite.NAME, *(entry.name for entry in (*REQUESTS, *SETTINGS))}
    if unknown := sorted(names - known):
        raise ConfigError(f"RAYGUARD_ALLOW names {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    return names


def refuse_settings(config: VllmConfig | None) -> None:
    """Refuse an engine, built with ``config``, all of whose answers may be wrong.

    Raises:
        ConfigError: It is one, or ``RAYGUARD_ALLOW`` cannot be used.
    """
    wanted, engine = allowed(), traits_of(config)
    for entry in SETTINGS:
        what = entry.found(engine) if engine.version in entry.versions and entry.name not in wanted else ""
        if what:
            raise ConfigError(entry.sentence(what, engine.version))


def traits_of(config: Any) -> EngineTraits:
    """Return what decides which entries hold for an engine with this config; for one not known, none."""
    with harmless("door"):
        import torch  # noqa: PLC0415 - comes with vLLM
        import vllm  # noqa: PLC0415 - vLLM only where it runs

        if config is None:
            return EngineTraits()
        cache, model, parallel = config.cache_config, config.model_config, config.parallel_config
        kinds = config.attention_config
        each = 2 * model.get_num_kv_heads(parallel) * model.get_head_size()  # keys and values of a token
        blocks = (cache.num_gpu_blocks or 0) // parallel.data_parallel_size
        return EngineTraits(
            version=_minor(vllm.__version__),
            torch=_minor(torch.__version__),
            v2_runner=config.use_v2_model_runner,
            prefix_caching=bool(cache.enable_prefix_caching),
            max_num_seqs=config.scheduler_config.max_num_seqs,
            attention=frozenset(
                kind.name for kind in (kinds.backend, *kinds.backend_per_kind.values()) if kind is not None
            ),
            layer_elements=blocks * (cache.block_size or 0) * each,
        )
    return EngineTraits()


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


@dataclass(slots=True)
class _Claims:
    """Who claimed which values for one key; ``cached`` where they meet through the prefix cache."""

    cached: bool
    holders: dict[Hashable, set[str]] = field(default_factory=dict)

    def other(self, value: Hashable, inside: Collection[str]) -> str | None:
        """Return who claimed another value, and is still met."""
        for claimed, names in self.holders.items():
            if claimed != value:
                for name in names:
                    if self.cached or name in inside:
                        return name
        return None

    def has(self, value: Hashable, inside: Collection[str]) -> bool:
        return any(name in inside for name in self.holders.get(value, ()))

    def add(self, value: Hashable, name: str, inside: Collection[str]) -> None:
        names = self.holders.setdefault(value, set())
        if len(names) > 64 + 2 * len(inside):  # of those that have ended one is enough
            names.intersection_update({name for name in names if name in inside} or [next(iter(names))])
        names.add(name)

    def keep(self, inside: Collection[str]) -> None:
        """Forget whoever is no longer inside."""
        living = {value: {n for n in names if n in inside} for value, names in self.holders.items()}
        self.holders = {value: names for value, names in living.items() if names}


class Meetings:
    """What is refused for the other requests of an engine, or by itself. For all threads.

    ``inside``: the ids of the requests that the engine has, by a book that somebody else keeps.
    """

    def __init__(self, inside: Collection[str] = ()) -> None:
        self._inside = inside
        self._allowed = allowed()
        self._lock = threading.RLock()
        self._core: object = None
        self._engine = EngineTraits()
        self._claims: dict[tuple[str, Hashable], _Claims] = {}
        self._loaded: dict[int, Hashable] = {}  # adapter's number -> when its files were written

    def refusal(self, request: EngineCoreRequest, core: object) -> str:
        """Say why ``core`` must not be given ``request``, and what to do; an empty text where it may."""
        with harmless("door"), self._lock:
            if core is not self._core:
                self._begin(core)
            found = not_finite(request) if finite.NAME not in self._allowed else ""
            if found:
                return f"{found}: it spoils others, through the engine's cache. {_ALL_THE_SAME}{finite.NAME}"
            for entry in REQUESTS:
                if self._engine.version in entry.versions and entry.name not in self._allowed:
                    what = (
                        entry.found(request, self._engine)
                        if isinstance(entry, WrongAlone)
                        else self._met(entry, request)
                    )
                    if what:
                        return entry.sentence(what, self._engine.version)
        return ""

    def _begin(self, core: object) -> None:
        """Another core has an empty cache, and adapters from the files of now."""
        holder = getattr(core, "engine_core", core)  # of a core that runs in this process
        self._core, self._engine = core, traits_of(getattr(holder, "vllm_config", None))
        self._loaded.clear()
        self.cache_dropped(self._inside)

    def cache_dropped(self, but: Collection[str] = ()) -> None:
        """Forget what the prefix cache held, ``but`` of these requests."""
        with self._lock:
            for claims in self._claims.values():
                claims.keep(but if claims.cached else self._inside)

    def would_spoil(self, question: EngineCoreRequest) -> bool:
        """Say whether a question of our own, which no door lets in, would be told wrong log-probabilities."""
        with self._lock:
            claims = self._claims.get(BY_TOKEN[:2])
            told = getattr(question.sampling_params, "logprobs", None)
            return bool(told) and claims is not None and claims.has(BY_TOKEN[2], self._inside)

    def noted(self, call: Call, answer: object) -> None:
        """Take note of a call that the engine answered."""
        with harmless("door"), self._lock:
            if call.name == "add_lora":
                self._stamp(call.given("lora_request", None))
            elif call.name == "remove_lora":
                self._loaded.pop(call.given("lora_id", 0), None)  # type: ignore[call-overload]
            elif _drops_cache(call, answer):
                self.cache_dropped()

    def _met(self, entry: WrongTogether, request: EngineCoreRequest) -> str:
        claim = entry.claim(request, self._engine, self._stamp)
        if claim is None:
            return ""
        claims = self._claims.setdefault((entry.name, claim[0]), _Claims(entry.cached))
        other = claims.other(claim[1], self._inside)
        if other is None:
            claims.add(claim[1], request.request_id, self._inside)
            return ""
        return f"{entry.what} (the other one is request {other!r})"

    def _stamp(self, adapter: Any) -> Hashable:
        """Return when the files of ``adapter`` were written that the engine has; None without such files."""
        number = adapter.lora_int_id
        if number not in self._loaded or adapter.load_inplace:
            self._loaded[number] = _written(adapter.lora_path)
        return self._loaded[number]


def _drops_cache(call: Call, answer: object) -> bool:
    if call.name == "sleep":
        return call.given("level", 1) != 0
    if call.name == "pause_scheduler":
        return bool(call.kwargs.get("clear_cache", call.args[1] if len(call.args) > 1 else True))
    return call.name == "reset_prefix_cache" and bool(answer)


def _written(folder: str) -> tuple[tuple[str, int, int], ...] | None:
    if not os.path.isdir(folder):  # noqa: PTH112 - scandir gives what is needed
        return None
    with os.scandir(folder) as found:
        files = [(one.name, one.stat()) for one in found if one.name.startswith(_ADAPTER)]
    return tuple(sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in files)) or None
