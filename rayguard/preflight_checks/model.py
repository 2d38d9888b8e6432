"""What the files of a model say of it, without torch: its sizes, from ``config.json`` and the tokenizer.

A name is looked for in the Hugging Face cache of this machine; nothing is downloaded.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SHARDS = "model.safetensors.index.json"
_DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Sizes of a model; 0 where its files do not say."""

    name: str
    parameters: int = 0
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_size: int = 0
    vocabulary: int = 0
    context: int = 0  # tokens that it was made for, stretched as its files say
    tokenizer_size: int = 0  # the highest id and one
    tokenizer: str = ""  # whose that is, where it is not the model's

    @property
    def kv_bytes(self) -> int:
        """Bytes of key-value cache for one token in 16 bits, on all ranks together."""
        return 2 * self.layers * self.kv_heads * self.head_size * 2


def model_facts(model: str, tokenizer: str | None = None) -> ModelFacts | None:
    """Return what is known of a model, None where its files are not here or cannot be read.

    Args:
        model: A folder, or a name that lies in the Hugging Face cache.
        tokenizer: The same, where it is not the model's own.
    """
    folder = _folder(model)
    words = folder if tokenizer in (None, model) else _folder(str(tokenizer))
    config = None if folder is None else _read(folder / "config.json")
    if folder is None or not isinstance(config, dict):
        return None
    inner = config.get("text_config")  # of models that also see
    text = inner if isinstance(inner, dict) else config
    hidden, layers, heads = (
        _int(text, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    head_size = _int(text, "head_dim") or (hidden // heads if heads else 0)
    kv_heads = _int(text, "num_key_value_heads") or heads
    vocabulary = _int(text, "vocab_size")
    inner_size = _int(text, "intermediate_size") * max(1, _int(text, "num_experts"))
    attention = hidden * head_size * (2 * heads + 2 * kv_heads)
    embeddings = vocabulary * hidden * (1 if text.get("tie_word_embeddings") else 2)
    return ModelFacts(
        name=model,
        parameters=_from_shards(folder, config)
        or layers * (attention + 3 * hidden * inner_size) + embeddings,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocabulary=vocabulary,
        context=_context(text),
        tokenizer_size=0 if words is None else _tokenizer(words),
        tokenizer="" if words == folder else str(tokenizer),
    )


def _folder(model: str) -> Path | None:
    try:
        if Path(model).is_dir():
            return Path(model)
    except OSError:  # a name that is too long for one, say
        return None
    home = os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    kept = sorted((cache / f"models--{model.replace('/', '--')}" / "snapshots").glob("*/config.json"))
    return kept[-1].parent if kept else None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _int(found: dict[str, Any], name: str) -> int:
    value = found.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _context(text: dict[str, Any]) -> int:
    scaling = text.get("rope_scaling")
    factor = scaling.get("factor", 1) if isinstance(scaling, dict) else 1
    stretched = (
        isinstance(factor, (int, float))
        and factor > 1
        and "original_max_position_embeddings" in (scaling or {})
    )
    length = _int(text, "max_position_embeddings")
    if stretched and isinstance(scaling, dict):
        return max(length, int(_int(scaling, "original_max_position_embeddings") * factor))
    return length


def _tokenizer(folder: Path) -> int:
    """Return the highest id of a tokenizer and one, 0 where its files do not say (sentencepiece alone)."""
    fast = _mapping(_read(folder / "tokenizer.json"))
    words = _mapping(fast.get("model")).get("vocab") or _read(folder / "vocab.json")
    ids: list[object] = list(words.values()) if isinstance(words, dict) else []
    if isinstance(words, list):  # unigram: the place is the id
        ids = list(range(len(words)))
    if not ids:
        return 0
    added = fast.get("added_tokens")
    ids += [one.get("id") for one in added if isinstance(one, dict)] if isinstance(added, list) else []
    ids += _mapping(_read(folder / "added_tokens.json")).values()
    slow = _mapping(_mapping(_read(folder / "tokenizer_config.json")).get("added_tokens_decoder"))
    ids += [int(one) for one in slow if one.isdecimal()]
    return max((one for one in ids if isinstance(one, int)), default=-1) + 1


def _mapping(found: object) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _from_shards(folder: Path, config: dict[str, Any]) -> int:
    """Return the number of parameters by the bytes of the checkpoint, 0 without an index."""
    index = _read(folder / _SHARDS)
    size = index.get("metadata", {}).get("total_size", 0) if isinstance(index, dict) else 0
    each = _DTYPES.get(str(config.get("torch_dtype") or config.get("dtype")), 2)
    return int(size) // each if isinstance(size, (int, float)) else 0
