"""The names of the installed vLLM's engine arguments, read from its source: importing it takes many seconds.

A second opinion and no more: where the source looks otherwise than expected, nothing is said. What a running
vLLM takes is ``rayguard.engine.vllm.arguments``.
"""

from __future__ import annotations

import functools
import re
from importlib.util import find_spec
from pathlib import Path

_FEWEST = 60  # fields; vLLM 0.8 has 110, 0.32 has 220
_SURELY = frozenset({"model", "tokenizer", "max_model_len", "max_num_seqs", "enforce_eager", "seed", "dtype"})
_FIELD = re.compile(r"^    (\w+)\s*:", re.MULTILINE)
_PARAMETER = re.compile(r"^        (\w+)\s*:", re.MULTILINE)
_IN_KWARGS = re.compile(r'"(\w+)" (?:not )?in kwargs|kwargs(?:\.\w+\(|\[)"(\w+)"')


@functools.cache
def written_names() -> frozenset[str] | None:
    """Return what ``LLM(...)`` and ``AsyncEngineArgs(...)`` take; None where that cannot be read for sure."""
    try:
        spec = find_spec("vllm")
        folders = [] if spec is None else list(spec.submodule_search_locations or ())
        if len(folders) != 1:
            return None
        engine = (Path(folders[0]) / "engine" / "arg_utils.py").read_text(encoding="utf-8")
        llm = (Path(folders[0]) / "entrypoints" / "llm.py").read_text(encoding="utf-8")
    except (OSError, ValueError, ImportError):
        return None
    return names_in(engine, llm)


def names_in(engine: str, llm: str) -> frozenset[str] | None:
    """Return the names that these sources of ``arg_utils.py`` and ``llm.py`` say; None where unsure."""
    args = _body(engine, "class EngineArgs:")
    more = _body(engine, "class AsyncEngineArgs(EngineArgs):")
    made = re.search(r"^    def __init__\(\n(.*?)^    \)", llm, re.MULTILINE | re.DOTALL)
    if not args or not more or made is None:
        return None
    fields = {*_FIELD.findall(args), *_FIELD.findall(more)}
    if len(fields) < _FEWEST or not fields >= _SURELY:
        return None
    taken = {name for pair in _IN_KWARGS.findall(llm) for name in pair if name}
    return frozenset({*fields, *_PARAMETER.findall(made[1]), *taken})


def _body(source: str, head: str) -> str:
    """Return what stands below a class's first line, up to its first method or to the next class."""
    _, found, after = source.partition(f"\n{head}\n")
    return re.split(r"^(?:    def |    @|\S)", after, maxsplit=1, flags=re.MULTILINE)[0] if found else ""
