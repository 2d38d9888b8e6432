"""Whether gradients and parameters are finite: one number for each tensor, and one look at them all.

Reads what this rank holds of its own: the local part of what FSDP2 and ZeRO-3 have sharded. No copy is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

_FEW = 4  # names in an error


def not_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[str, ...]:
    """Return the names of the first tensors that are not finite; none where all are: that costs one read."""
    import torch  # noqa: PLC0415 - whoever has a model has loaded it

    with torch.no_grad():
        held = [(name, part) for name, tensor in tensors if (part := _held(tensor)) is not None]
        if not held:
            return ()
        device = held[0][1].device
        norms = torch.stack([_norm(part).to(device) for _, part in held])
        if bool(norms.isfinite().all().item()):
            return ()
        suspects = norms.isfinite().logical_not().nonzero().flatten().tolist()
        # A norm also overflows for numbers that are finite, if huge.
        bad = (name for name, part in (held[at] for at in suspects) if not bool(part.isfinite().all().item()))
        return tuple(name for name, _ in zip(bad, range(_FEW), strict=False))


def on_any_rank(found: bool, model: torch.nn.Module) -> bool:  # noqa: FBT001 - a reduced value
    """Say whether it was ``found`` on any rank: all leave a step out, or none. All ranks must call it."""
    import torch  # noqa: PLC0415 - as above

    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return found
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    flag = torch.tensor([float(found)], device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def gradients(model: torch.nn.Module) -> Sequence[tuple[str, torch.Tensor]]:
    """Return the gradients that a model has; none where they are kept elsewhere (DeepSpeed)."""
    return [(name, one.grad) for name, one in model.named_parameters() if one.grad is not None]


def _held(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the floating numbers of a tensor that this rank holds, None where there are none."""
    import torch  # noqa: PLC0415 - as above

    part = getattr(tensor, "ds_tensor", tensor)  # ZeRO-3 leaves an empty one in its place
    local = getattr(part, "to_local", None)  # FSDP2's DTensor
    part = local() if callable(local) else part
    part = part.coalesce().values() if part.is_sparse else part
    known = part.dtype in {torch.float64, torch.float32, torch.bfloat16, torch.float16}
    found: torch.Tensor | None = part if known and part.numel() and not part.is_meta else None
    return found


def _norm(part: torch.Tensor) -> torch.Tensor:
    import torch  # noqa: PLC0415 - as above

    # In float16 a norm of more than 65504 is infinite, and a model's may be.
    return torch.linalg.vector_norm(
        part, dtype=torch.float32 if part.dtype is torch.float16 else None
    ).float()
