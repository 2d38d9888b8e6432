"""The user's own changes of an engine's weights, which rayguard did not push: what is known of them. Pure.

verl, OpenRLHF and TRL push through ``collective_rpc`` into a worker extension of their own, or through vLLM's
weight transfer. Such weights die with the engine. Seeing the calls is each adapter's; putting weights into a
new engine is ``current``'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Calls to vLLM's workers (0.32) that bring in no other weights than those of the model; our own among them.
READING = frozenset(
    {
        *("add_lora", "annotate_profile", "check_health", "compute_weight_checksums", "execute_dummy_batch"),
        *("get_cache_block_size_bytes", "get_compilation_match_table", "get_draft_model"),
        *("get_encoder_timing_stats", "get_kv_cache_spec", "get_kv_connector_handshake_metadata"),
        *("get_model", "get_model_inspection", "get_supported_kv_cache_layouts", "get_supported_tasks"),
        *("init_weight_transfer_engine", "list_loras", "pin_lora", "profile", "remove_lora"),
        *("reset_encoder_cache", "reset_mm_cache", "save_sharded_state", "save_tensorized_model"),
        *("shutdown_weight_transfer_engine", "supports_draft_weight_updates", "synchronize_device"),
        *("rayguard_fingerprint", "rayguard_weights", "sleep", "wake_up"),
        *("checkpoint_prepare", "checkpoint_restore", "discard", "release_kv_cache_memory"),
    }
)
# vLLM's own weight transfer: a push is whole at its end.
_PARTS = frozenset({"start_weight_update", "start_draft_weight_update", "update_weights"})
_END = "finish_weight_update"
_QUIET_S = 5.0  # after the last call of a push that has fewer calls than the one before
LOST = (
    "the weights of this engine were pushed by your own code (collective_rpc, apply_model or vLLM's weight "
    "transfer) and died with the engine before it; this one has the checkpoint that it was built with and "
    "answers nobody. Push them again in the same way, and give start_engine(weights=lambda engine: ...), a "
    "function that pushes them into a new engine: then the next death needs nobody"
)


@dataclass(slots=True)
class WeightChanges:
    """The user's own pushes into one engine slot, over all its lives.

    Invariant: while ``refusal`` is not empty, the engine that serves answers no request.
    """

    watched: bool = False  # nothing else says what the weights are: each change counts
    changed: bool = False  # some engine of this slot was changed so; that is never taken back
    refusal: str = ""  # why the engine may not answer
    said: str = ""  # version that ``weights=`` said it pushed; no longer after another change
    tell: Callable[[], object] = field(
        default=lambda: None
    )  # after the first change: keep it beyond the process
    _lost: bool = False
    _calls: int = 0  # of the push that is under way
    _whole: int = 1  # calls that the longest push had
    _last_s: float = 0.0
    _methods: set[str] = field(default_factory=set)  # that were seen to change weights

    @property
    def lost(self) -> bool:
        """Whether the engine lacks what was pushed into the one before it."""
        return self._lost

    @property
    def irreplaceable(self) -> bool:
        """Whether the engine that serves has weights that no other one could get."""
        return self.watched and self.changed and not self._lost

    @property
    def missing(self) -> str:
        """Why the engine answers nobody: it lacks what was pushed; an empty text if it does not."""
        return self.refusal if self._lost else ""

    def to_json(self) -> dict[str, object]:
        """Return what the next process must know."""
        if not self.changed:
            return {}
        return {"own_push": {"calls": max(self._whole, self._calls), "methods": sorted(self._methods)}}

    def recall(self, memory: Mapping[str, object]) -> None:
        """Take up what an earlier process of the actor knew."""
        known = memory.get("own_push")
        if isinstance(known, dict):
            self.changed, self._whole = True, int(known["calls"])
            self._methods.update(known["methods"])

    def lose(self) -> None:
        """A new engine begins without what was pushed into the last one."""
        self._close()
        self._lost, self.refusal = True, LOST

    def expect(self) -> None:
        """Lack a push that other engines have got, where nothing else says what the weights are."""
        if self.watched and not self.changed:
            self.changed = True
            self.lose()

    def is_unclear(self, method: str) -> bool:
        """Whether only a look at the weights, before and after, can tell what a call of ``method`` does."""
        if not self.watched or method in READING or self._changes(method):
            return False
        return self._lost or not self.changed

    def called(self, method: str, now_s: float, *, differ: bool | None, done: bool = True) -> None:
        """A call into the workers is over; not ``done`` where it raised.

        ``differ`` says whether the weights are others than before it; None where nobody looked or could.
        """
        if method in READING:
            return
        self.said = ""
        if not self.watched:
            return
        if differ is None:
            differ = self._changes(method) or not self._methods
        if not differ:
            return
        first, self.changed = not self.changed, True
        self._methods.add(method)
        self._calls, self._last_s = self._calls + 1, now_s
        if done and method not in _PARTS and (method == _END or self._calls >= self._whole):
            self._found()
        if first:
            self.tell()

    def _changes(self, method: str) -> bool:
        # Who loads a checkpoint into an engine that lacks a push means it, also where it has the same bits.
        whole = method == _END or (self._lost and method == "reload_weights")
        return whole or method in self._methods or method in _PARTS

    def asked(self, now_s: float) -> str:
        """A request comes: say why it may not be answered; an empty text if it may."""
        if self._lost and self._calls and now_s - self._last_s > _QUIET_S:
            self._found()
        if not self.refusal:
            self._close()
        return self.refusal

    def _close(self) -> None:
        self._whole, self._calls = max(self._whole, self._calls), 0

    def _found(self) -> None:
        if self._lost:
            self._lost, self.refusal = False, ""
