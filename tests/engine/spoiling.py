"""Damage to a real engine's weights behind its receipt: ``Spoiler`` runs in the workers."""

from __future__ import annotations


class Spoiler:
    def spoil(self, factor: float) -> str:
        """Multiply one norm of the model by ``factor``; return its name."""
        import torch

        named = self.model_runner.get_model().named_parameters()
        name, norm = next(
            (name, p) for name, p in named if "layers.0" in name and "norm" in name and p.numel()
        )
        with torch.no_grad():
            norm.mul_(factor)
        return name

    def spoil_cache(self) -> int:
        """Turn every key and value in the cache around; return how many layers there are."""
        for cache in self.model_runner.kv_caches:
            cache.neg_()
        return len(self.model_runner.kv_caches)

    def look(self) -> int:
        """Change nothing."""
        return len(list(self.model_runner.get_model().named_parameters()))
