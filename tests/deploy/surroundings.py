"""What a process is started with: are its variables ones that Ray or rayguard read, and do they say something true?"""

from __future__ import annotations

import importlib
import json
import re
import shlex
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rayguard.config import ENV_PREFIX, Settings
from tests.deploy.kinds import ROOT

# Of the compose file, the units and the launcher's environment; Ray does not read it.
OURS = {"RAY_HEAD_ADDRESS", "RAYGUARD_PROMETHEUS_URL"}
_REQUIRED = {
    "RAY_RUNTIME_ENV_PLUGINS",
    "RAY_RUNTIME_ENV_HOOK",
    "RAYGUARD_AGENT_PORT",
    "RAYGUARD_METRICS_ADDRESS",
}


def complaints(said: dict[str, Any]) -> list[str]:
    """Return what is wrong with the environment that a Ray node with rayguard is started in.

    A value of None is one that only the machine knows.
    """
    found = [f"nobody reads {name}" for name in said if name not in OURS and not _read(name)]
    found += [f"{name} is missing" for name in sorted(_REQUIRED - set(said))]
    found += _settings(said)
    found += _plugins(said.get("RAY_RUNTIME_ENV_PLUGINS"))
    if (hook := said.get("RAY_RUNTIME_ENV_HOOK")) and not callable(_imported(hook)):
        found.append(f"RAY_RUNTIME_ENV_HOOK does not import: {hook}")
    return found


def _settings(said: dict[str, Any]) -> list[str]:
    given = {
        name.removeprefix(ENV_PREFIX).lower(): value
        for name, value in said.items()
        if name.startswith(ENV_PREFIX) and name not in OURS and value is not None and _read(name)
    }
    try:
        Settings(**{name: _plain(value) for name, value in given.items()})
    except ValueError as error:
        return [str(error)]
    return []


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _plugins(text: str | None) -> list[str]:
    try:
        classes = [one["class"] for one in json.loads(text or "[]")]
    except (ValueError, TypeError, KeyError) as error:
        return [f"RAY_RUNTIME_ENV_PLUGINS cannot be read: {error!r}"]
    names = [getattr(_imported(path), "name", None) for path in classes]
    return (
        [] if names == ["rayguard"] else [f"RAY_RUNTIME_ENV_PLUGINS loads no rayguard: {classes} are {names}"]
    )


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError):
        return None


def _read(name: str) -> bool:
    if name.startswith(ENV_PREFIX):
        return name.removeprefix(ENV_PREFIX).lower() in Settings.model_fields
    return not name.startswith("RAY_") or f'"{name}"' in _source_of_ray()


@cache
def _source_of_ray() -> str:
    spec = find_spec("ray")
    assert spec
    assert spec.origin
    return "\n".join(path.read_text("utf-8") for path in Path(spec.origin).parent.glob("_private/**/*.py"))


def image_complaints(image: str) -> list[str]:
    """Return why ``image`` is no name to rely on: it must have a tag, and ours must be the version of this source."""
    name, _, tag = image.rpartition(":")
    if not name or "/" in tag or tag in ("latest", "nightly", "main"):
        return [f"{image} may be another image tomorrow"]
    if name.rpartition("/")[2] == "rayguard" and tag.removesuffix("-gpu") != version():
        return [f"{image} is not version {version()}"]
    return []


@cache
def version() -> str:
    """Return the version of rayguard in this source."""
    return metadata.version("rayguard")


def ray_version() -> str:
    """Return the version of Ray that everything here is tested with."""
    pins = (ROOT / "requirements" / "constraints.txt").read_text("utf-8")
    return re.search(r"^ray==(\S+)$", pins, re.MULTILINE).group(1)  # type: ignore[union-attr]


def file(text: str) -> dict[str, str]:
    """Return the variables of an environment file that systemd, a shell and compose all read alike."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return dict(shlex.split(line)[0].partition("=")[::2] for line in lines)  # type: ignore[misc]
