"""What is wrong with a recipe, as far as that can be seen before vLLM is imported, which takes many seconds.

Its form, names of engine arguments that the installed vLLM does not have, and models that are not there.
How the source is read is ``recipe_source``; the names come from ``rayguard.engine.vllm.argument_names``.
"""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.engine.build.recipe_source import Passed, passed_to_vllm
from rayguard.engine.settings import SAFE_SETTINGS
from rayguard.engine.vllm.argument_names import written_names
from rayguard.errors import ConfigError
from rayguard.harmless import harmless
from rayguard.options import meant

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_WRITE = "write `def build_engine(self, settings): ... return LLM(**settings.as_kwargs(model=...))`"
_YES = frozenset({"1", "ON", "YES", "TRUE"})  # as huggingface_hub reads its variables
_OWN_WAYS = ("load_format", "config_format", "download_dir", "hf_config_path", "model_weights")
_UNEXPECTED = re.compile(
    r"(?:LLM|EngineArgs|AsyncEngineArgs)\.__init__\(\) got an unexpected keyword argument '(\w+)'"
)
_OF_ID = 2  # parts of a model's name on the Hub: owner and name


def checked(recipe: Callable[..., object]) -> Callable[[Mapping[str, object]], None] | None:
    """Refuse a recipe that cannot work; return the check of what it gives to ``as_kwargs``, None for none.

    Raises:
        ConfigError: It does not take its settings, is a coroutine function, passes an argument that vLLM
            does not have, or names a model that is not there.
    """
    if not callable(recipe):
        raise ConfigError(f"build_engine must be a function of the settings, got {recipe!r}")
    refuse_form(recipe)
    names, passed = None, Passed()
    with harmless("recipe"):
        names, passed = written_names(), passed_to_vllm(recipe)
    if names is None:
        return None
    known = names
    refuse(passed.names, passed.values, known)
    if not passed.all_of_settings:
        return None
    return lambda given: refuse(given, given, known)


def refuse(names: Collection[str], values: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse arguments of vLLM's that are not ``known``, and models that are not there.

    Raises:
        ConfigError: One is wrong.
    """
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"the installed vLLM knows no engine argument {unknown[0]!r}, which build_engine passes"
            f"{meant(unknown[0], known) or '; leave it out'}"
        )
    if any(name in names for name in _OWN_WAYS):
        return  # how it is found, these say
    for name in ("model", "tokenizer"):
        value = values.get(name)
        missing = _missing(os.fspath(value)) if isinstance(value, (str, os.PathLike)) else ""
        if missing:
            raise ConfigError(f"build_engine passes {name}={str(value)!r} to vLLM: {missing}")


def explained(error: TypeError) -> Exception:
    """Return what to do where a recipe's arguments are wrong; else the error itself."""
    said = str(error)
    if "multiple values for keyword argument" in said:
        return ConfigError(
            f"{said}: pass your own values through settings.as_kwargs(max_num_seqs=..., ...) and not beside "
            f"it, so that a safe setting can lower them ({', '.join(SAFE_SETTINGS)})"
        )
    unknown = _UNEXPECTED.match(said)
    if unknown:
        near = meant(unknown[1], written_names() or ())
        return ConfigError(f"{said}{near or ': leave it out'}")
    return error


def refuse_form(recipe: Callable[..., object], *owner: object) -> None:
    """Refuse a recipe that cannot be called with (its ``owner`` and) the settings alone.

    Raises:
        ConfigError: It cannot, or is a coroutine function.
    """
    if inspect.iscoroutinefunction(recipe):
        raise ConfigError(
            "build_engine must not be async: it is called in a thread, and may block. Take the `async` away: "
            f"{_WRITE}"
        )
    try:
        signature = inspect.signature(recipe)
    except (TypeError, ValueError):  # built in
        return
    try:
        signature.bind(*owner, object())
    except TypeError as error:
        taken = ", ".join(str(one) for name, one in signature.parameters.items() if not name.startswith("_"))
        raise ConfigError(
            f"build_engine({taken}) cannot be called with the settings ({error}): {_WRITE}"
        ) from None


def _missing(model: str) -> str:
    """Return why a model is not there, '' where it is or where only vLLM can tell."""
    if not model or ":" in model or model.startswith("~") or os.path.exists(model):  # noqa: PTH110 - as vLLM asks
        return ""
    parts = [part for part in model.split("/") if part]
    if model.startswith(("/", "./", "../")):
        there = next(parent for parent in Path(model).absolute().parents if parent.exists())
        return f"there is no such file or folder on this machine ({there} is there). Correct the path"
    if len(parts) > _OF_ID or _loaded_elsewhere() or not _offline():
        return ""
    cache = _hub_cache()
    if (cache / "--".join(["models", *parts])).exists():
        return ""
    return (
        f"there is no such folder, and it is not in {cache}, to which nothing is fetched while "
        "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set. Give the path of a folder, or unset the variable"
    )


def _offline() -> bool:
    said = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return said.upper() in _YES


def _loaded_elsewhere() -> bool:
    return any(os.environ.get(name) for name in ("VLLM_USE_MODELSCOPE", "TRANSFORMERS_CACHE"))


def _hub_cache() -> Path:
    """Return where huggingface_hub keeps what it fetched."""
    said = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if said:
        return Path(os.path.expandvars(said)).expanduser()
    base = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return Path(os.path.expandvars(base)).expanduser() / "hub"
