"""A random Qwen2 of 100 000 parameters and a tokenizer for it, built on the spot: no download.

For tests and examples that want a real engine on any machine. Needs ``transformers`` (vLLM brings it).
"""

# ruff: noqa: PLC0415 - torch and transformers take seconds to import; who only asks for a size does not pay

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

VOCABULARY = 512
END = "<|endoftext|>"


def tiny_model(
    seed: int = 0,
    *,
    tied: bool = False,
    vocabulary: int = VOCABULARY,
    context: int = 512,
    spread: float = 0.02,
) -> Qwen2ForCausalLM:
    """Return the model in float32; the same arguments give the same bytes.

    ``spread`` is that of the random weights: at 0.2 greedy answers differ from token to token, while at 0.02
    (what training starts from) the model may repeat one for ever.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        initializer_range=spread,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(seed)
    model: Qwen2ForCausalLM = Qwen2ForCausalLM(config).to(torch.float32)  # type: ignore[no-untyped-call]
    return model


def tiny_tokenizer(texts: Iterable[str], *, vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer trained on ``texts``; its end token has the id 0."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END, bos_token=END
    )


def build(folder: Path | str, seed: int = 0, *, texts: Iterable[str] = (), **options: Any) -> Path:
    """Write a model, and a tokenizer where there are ``texts`` to train it on; return its whole path."""
    folder = Path(folder).absolute()  # engines live in other processes, with other working directories
    folder.mkdir(parents=True, exist_ok=True)
    tiny_model(seed, **options).save_pretrained(folder)
    if texts:
        tiny_tokenizer(texts).save_pretrained(folder)
    return folder
