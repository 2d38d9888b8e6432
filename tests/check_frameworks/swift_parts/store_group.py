"""What stands in the place of ms-swift's NCCL group on a CPU: tensors go by way of the store in which its ranks met."""

from __future__ import annotations


class StoreGroup:
    """In the place of ``PyNcclCommunicator``; ``group`` is a ``StatelessProcessGroup``."""

    def __init__(self, group, device=None):
        import torch

        self.group, self.device = group, torch.device("cpu")
        self.rank, self.world_size = group.rank, group.world_size

    def broadcast(self, tensor, src, stream=None):
        """Fill ``tensor`` where it is received."""
        received = self.group.broadcast(tensor.detach(), src)
        if received is not tensor and self.rank != src:
            tensor.data.copy_(received)
