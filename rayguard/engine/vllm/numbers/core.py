"""The engine core's part: a request whose logits were no numbers ends there, and leaves nothing to others.

What made them may lie in its keys and values. vLLM would give those to the next request with the same prompt
(the prefix cache), so they are taken out of it. And on the CPU vLLM's attention multiplies what a block holds
past the end of a sequence by zero, which leaves NaN: requests that got such a block later were spoiled too
(measured with 0.32). There a block that nobody else uses is zeroed before it is used again, by the way that
vLLM has for that; on a GPU vLLM finds it unneeded for caches of one precision.

Called for each step: one look at a dict of counts. The frontend's part is ``ends``; questions of rayguard's
own (canaries) are answered as ever, since who asks them looks for NaN himself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from rayguard.engine.vllm.patch import says, takes, wrap
from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rayguard.engine.vllm.interfaces import EngineCoreOutputs

_OWN = "rayguard-"
_DIRTY = "rayguard_dirty_blocks"


def fits() -> bool:
    """Say whether this vLLM's scheduler takes counts, ends requests and has blocks zeroed as we know it."""
    return (
        takes(Scheduler.update_from_output, "self", "scheduler_output", "model_runner_output")
        and takes(Scheduler.finish_requests, "self", "request_ids", "finished_status")
        and takes(Scheduler._get_new_block_ids_to_zero, "self")  # noqa: SLF001
        and takes(KVCacheManager.get_block_ids, "self", "request_id")
        and takes(KVCacheManager.evict_blocks, "self", "block_ids")
        and says(
            Scheduler.update_from_output,
            "num_nans_in_logits = model_runner_output.num_nans_in_logits",
            "error_reqs = self.finish_requests(error_req_ids, RequestStatus.FINISHED_ERROR)",
        )
        and says(Scheduler.schedule, "new_block_ids_to_zero=self._get_new_block_ids_to_zero()")
    )


def put_in() -> None:
    """Wrap what is called once for a step's results, and once for what is zeroed before the next."""
    wrap(Scheduler, "update_from_output", _updated)
    if current_platform.is_cpu():
        wrap(Scheduler, "_get_new_block_ids_to_zero", _to_zero)


def _updated(
    update: Callable[..., Mapping[int, EngineCoreOutputs]], scheduler: Any, scheduled: object, output: Any
) -> Mapping[int, EngineCoreOutputs]:
    counts = output.num_nans_in_logits
    bad: list[str] = []
    if counts and any(counts.values()):
        with harmless("numbers"):
            bad = _spoiled(scheduler, output)
            _leave_nothing(scheduler, bad)
    outputs = update(scheduler, scheduled, output)
    if bad:
        with harmless("numbers"):
            scheduler.finish_requests(bad, RequestStatus.FINISHED_ERROR)
            for one in outputs.values():
                for made in one.outputs:
                    if made.request_id in bad:
                        made.new_token_ids, made.new_logprobs = [], None
                        made.finish_reason = FinishReason.ERROR
    return outputs


def _spoiled(scheduler: Any, output: Any) -> list[str]:
    """Return whose token was sampled from bad logits in this step; a part of a prompt has none yet."""
    if getattr(scheduler.vllm_config, "speculative_config", None) is not None:
        return []  # a count is of a row there, not of a request
    return [
        name
        for name, count in output.num_nans_in_logits.items()
        if count and not name.startswith(_OWN) and _is_answered(scheduler, output, name)
    ]


def _is_answered(scheduler: Any, output: Any, name: str) -> bool:
    request = scheduler.requests.get(name)
    tokens = output.sampled_token_ids
    if request is None or request.is_finished() or request.num_stale_output_tokens > 0:
        return False
    return bool(tokens and tokens[output.req_id_to_index[name]])


def _leave_nothing(scheduler: Any, bad: list[str]) -> None:
    manager = scheduler.kv_cache_manager
    held = Counter(block for name in bad for group in manager.get_block_ids(name) for block in group)
    manager.evict_blocks(set(held))
    if scheduler.connector is not None:  # which may be sending them
        return
    blocks = manager.block_pool.blocks
    own = (one for one, holders in held.items() if not blocks[one].is_null and blocks[one].ref_cnt <= holders)
    vars(scheduler).setdefault(_DIRTY, set()).update(own)


def _to_zero(new: Callable[[Any], list[int] | None], scheduler: Any) -> list[int] | None:
    ids = new(scheduler)
    dirty: set[int] | None = vars(scheduler).pop(_DIRTY, None)
    return [*(ids or ()), *sorted(dirty)] if dirty else ids
