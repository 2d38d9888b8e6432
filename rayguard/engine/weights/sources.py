"""Where the current weights come from: a function, or a checkpoint folder.

The value itself and its proof are ``rayguard.engine.weights.version``; when it is asked for is ``current``.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from rayguard.engine.weights import tensorfile
from rayguard.engine.weights.version import Weights, check
from rayguard.errors import ConfigError, WeightsError

MAX_REFERENCES = 4  # an ObjectRef to an ObjectRef to ...: then it is a mistake


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """What a source may answer instead of weights that the asker has already, to the byte."""

    version: str


@runtime_checkable
class WeightSource(Protocol):
    """Says which weights are current."""

    def current(self) -> Weights | None:
        """Return them, None while there are none but the model's own. May block: call it in a thread."""
        ...


@dataclass(frozen=True, slots=True)
class CallbackWeights:
    """Asks a function, e.g. ``trainer.weights.remote``, which returns one of:

    ``Weights``, ``None``, ``(version, body)`` with safetensors bytes, a path or a mapping of tensors as
    body, or a Ray ObjectRef to any of these (also as body). What it raises is not caught here.

    Cheapest is ``(version, ref)`` with the same ref for the same version (``ray.put`` once): what the
    engine has already is then not even fetched.
    """  # noqa: D415 - the list is the sentence's end

    fn: Callable[[], object]
    timeout_s: float = 60.0
    _fetched: dict[tuple[str, str], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def current(self) -> Weights | None:
        """Call the function and fetch what it refers to."""
        found = self.current_unless("")
        assert not isinstance(found, HeldWeights)  # nothing has an empty digest
        return found

    def current_unless(self, held: str) -> Weights | HeldWeights | None:
        """Call the function and fetch what it refers to, unless it is known to have the digest ``held``."""
        value = self._fetch(self.fn())
        if value is None or isinstance(value, Weights):
            return value
        if not (isinstance(value, (tuple, list)) and len(value) == 2):  # noqa: PLR2004 - a pair
            raise self._refuse(value)
        # What a reference stands for never changes: the same one means the same bytes.
        version, reference = str(value[0]), _reference(value[1])
        if held and reference and self._fetched.get((version, reference)) == held:
            return HeldWeights(version)
        weights = self._weights(version, value)
        self._fetched.clear()
        if reference:
            self._fetched[version, reference] = weights.digest
        return weights

    def _weights(self, version: str, value: Sequence[object]) -> Weights:
        body = self._fetch(value[1])
        if isinstance(body, (bytes, bytearray, memoryview)):
            return Weights(version, payload=bytes(body))
        if isinstance(body, (str, os.PathLike)):
            return Weights(version, path=os.fspath(body))
        if isinstance(body, Mapping):
            return Weights.from_tensors(version, body)
        raise self._refuse(value)

    def _fetch(self, value: object) -> object:
        """Follow Ray references. Ray is only looked at where the user has loaded it."""
        ray = sys.modules.get("ray")
        for _ in range(MAX_REFERENCES):
            if ray is None or not _reference(value):
                return value
            try:
                value = ray.get(value, timeout=self.timeout_s)
            except ray.exceptions.RayError as error:
                raise WeightsError(
                    f"the current weights could not be fetched within {self.timeout_s:g} s: "
                    f"{type(error).__name__}: {error}"
                ) from error
        raise self._refuse(value)

    def _refuse(self, value: object) -> ConfigError:
        if hasattr(value, "close") and hasattr(value, "cr_frame"):
            value.close()  # a coroutine: left alone it would warn that it was never awaited
        return ConfigError(
            f"{self.fn!r} must return Weights, None, (version, bytes | path | tensors), or a Ray ObjectRef "
            f"to one of these (an async function does not fit), got {type(value).__name__}"
        )


def _reference(value: object) -> str:
    """Return the name of a Ray reference, an empty string for any other value."""
    ray = sys.modules.get("ray")
    return value.hex() if ray is not None and isinstance(value, ray.ObjectRef) else ""


@dataclass(slots=True)
class CheckpointWeights:
    """The newest complete safetensors checkpoint in or below a folder; a file stands for itself.

    Version: its folder's name and the time of its newest file, so a folder that is saved over is a new
    version. A checkpoint that is still being written is passed over for the one before it.
    """

    path: str
    _last: Weights | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse a path that is not there: a typo would mean that the engine is never updated."""
        if not Path(self.path).exists():
            raise ConfigError(f"no such checkpoint file or folder: {self.path!r} (create the folder first)")

    def current(self) -> Weights | None:
        """Return the newest complete checkpoint, None while there is none."""
        for saved_ns, _, folder in sorted(self._candidates(), reverse=True):
            weights = Weights(f"{folder.name}@{saved_ns}", path=str(folder))
            if weights == self._last:
                return self._last  # keeps its digest: hashing takes about a second per GB
            with contextlib.suppress(OSError, WeightsError):
                check(weights, finite=False)
                # Hashed here and not later: saved over meanwhile, new bytes would go under the old name.
                if weights.digest and _saved_ns(folder) == saved_ns:
                    self._last = weights
                    return weights
        return None

    def _candidates(self) -> Iterator[tuple[int, list[tuple[int, str]], Path]]:
        root = Path(self.path)
        found = [root] if root.is_file() else []
        for name, _, files in os.walk(root):  # not rglob: it raises when a folder is deleted meanwhile
            if any(file.endswith(".safetensors") for file in files):
                found.append(Path(name))
        for folder in found:
            with contextlib.suppress(OSError, WeightsError):  # rotated away, or half saved
                yield _saved_ns(folder), _natural(folder.name), folder


def _saved_ns(folder: Path) -> int:
    return max(file.stat().st_mtime_ns for file in tensorfile.checkpoint_files(str(folder)))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which step-9 comes before step-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


@dataclass(frozen=True, slots=True)
class OwnPush:
    """The user's own push: ``push(engine)`` puts the current weights into a new engine before it serves.

    What it returns is awaited under an ``AsyncLLM``; a text is the version's name.
    """

    push: Callable[[Any], object]


GivenWeights: TypeAlias = (
    "WeightSource | Weights | Callable[[], object] | Callable[[Any], object] | str | os.PathLike[str]"
)


def as_source(obj: GivenWeights) -> WeightSource | OwnPush:
    """Return the source that the user means by ``obj``: a source, weights, a function or a path.

    A function that must be given one argument is the user's own push (``OwnPush``).
    """
    if isinstance(obj, WeightSource):
        return obj
    if isinstance(obj, Weights):
        return CallbackWeights(lambda: obj)
    if isinstance(obj, (str, os.PathLike)):
        return CheckpointWeights(os.fspath(obj))
    if callable(obj):
        function: Callable[..., object] = obj
        return OwnPush(function) if _takes_engine(function) else CallbackWeights(function)
    raise ConfigError(
        f"weights must be a WeightSource, Weights, a function or a checkpoint path, got {type(obj).__name__}"
    )


def _takes_engine(function: Callable[..., object]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built in
        return False
    must = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return len(must) == 1 and must[0].kind is not inspect.Parameter.KEYWORD_ONLY
