"""Words that a real engine's model makes NaN of: ``NanWords`` runs in the workers."""

from __future__ import annotations


class NanWords:
    def nan_for(self, words: list[int], value: str = "nan") -> None:
        """Let the embedding give ``value`` for each of ``words``; what else stands in the batch is as it was."""
        import torch

        def spoil(_module, args, given):
            bad = torch.isin(args[0], torch.tensor(words, device=given.device))
            return given.masked_fill(bad.unsqueeze(-1), float(value))

        model = self.model_runner.get_model()
        self.sound()
        self._nan_hook = model.model.embed_tokens.register_forward_hook(spoil)

    def infinite(self, row: int, factor: float) -> None:
        """Let the logits of one word be +inf for all."""
        model = self.model_runner.get_model()
        made = model.compute_logits

        def compute(hidden):
            logits = made(hidden)
            logits[:, row] = factor * float("inf")
            return logits

        model.compute_logits = compute

    def sound(self) -> None:
        """Let all be as it was."""
        hook = getattr(self, "_nan_hook", None)
        if hook is not None:
            hook.remove()
        vars(self.model_runner.get_model()).pop("compute_logits", None)

    def counts(self) -> bool:
        """Say whether this process counts what is no number."""
        import vllm.envs

        return bool(vllm.envs.VLLM_COMPUTE_NANS_IN_LOGITS)
