"""Where rayguard keeps its state and where it listens: an argument, else the environment, else the default.

What the guard may *do* is no setting but a value: ``rayguard.recovery.policy``. How the directories are made
and checked is ``rayguard.private``; choosing one here creates nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from rayguard.errors import ConfigError
from rayguard.home import default_home

ENV_PREFIX = "RAYGUARD_"
_OFF = frozenset({"off", "none", "no"})


def _port_or_off(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() in _OFF else value


def _absolute(value: Any) -> Any:
    """Make a path independent of the working directory: Ray gives each job and worker another one."""
    if value == "":
        raise ValueError("a path must not be empty")
    try:
        return Path(value).expanduser().absolute() if isinstance(value, (str, Path)) else value
    except RuntimeError as error:  # "~someone" who does not exist; pydantic wants a ValueError
        raise ValueError(str(error)) from error


def _absolute_each(value: Any) -> Any:
    """Make paths absolute; several are joined as in PATH, or given as a list."""
    if isinstance(value, (str, Path)):
        value = str(value).split(os.pathsep)
    if not isinstance(value, (list, tuple)):
        return value
    return os.pathsep.join(str(_absolute(path)) for path in value if path != "")


class Settings(BaseSettings):
    """The settings of one process; ``Settings(metrics_port=0)`` or ``RAYGUARD_METRICS_PORT=0``.

    Raises ``ConfigError`` with the name of the argument or variable that cannot be used.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, validate_default=True
    )

    home: Annotated[Path, BeforeValidator(_absolute)] = Field(default_factory=default_home)
    metrics_port: Annotated[int | None, BeforeValidator(_port_or_off)] = Field(default=None, ge=0, le=65_535)
    metrics_address: str = Field(default="127.0.0.1", min_length=1)
    # Of the node's endpoint and of processes' own; a file, since each worker inherits the environment.
    metrics_token_file: Annotated[Path | None, BeforeValidator(_absolute)] = None
    agent_port: int = Field(default=0, ge=0, le=65_535)
    agent_idle_s: float = Field(default=0.0, ge=0.0)  # after which it leaves an idle node; 0: it stays
    agent_silent_s: float = Field(default=120.0, ge=1.0)  # of a call, before it may be told as a hang
    journal_max_bytes: int = Field(default=8 << 20, ge=4_096)
    journal_keep: int = Field(default=4, ge=1, le=1_000)
    catalog: Annotated[str, BeforeValidator(_absolute_each)] = ""
    allow: str = ""  # what is refused as known to be answered wrongly, and wanted all the same: "one,two"

    @property
    def catalogs(self) -> tuple[Path, ...]:
        """The user's own catalog files (``RAYGUARD_CATALOG=one.yaml:two.yaml``), the last one asked first."""
        return tuple(Path(path) for path in self.catalog.split(os.pathsep) if path)

    def metrics_token(self) -> str | None:
        """Return what the file of the token says, None without one. Raises ``OSError``: it cannot be read."""
        file = self.metrics_token_file
        return None if file is None else file.read_text(encoding="utf-8").strip()

    def __init__(self, **arguments: Any) -> None:
        """Take ``arguments`` first; pydantic's report becomes one sentence for each mistake."""
        try:
            super().__init__(**arguments)
        except ValidationError as error:
            raise ConfigError("; ".join(_mistakes(error, arguments))) from error


def _mistakes(error: ValidationError, arguments: dict[str, Any]) -> list[str]:
    known = ", ".join(Settings.model_fields)
    sentences = []
    for mistake in error.errors(include_url=False):
        name = str(mistake["loc"][0]) if mistake["loc"] else ""
        if mistake["type"] == "extra_forbidden":
            sentences.append(f"Settings has no argument {name!r}; known are {known}")
            continue
        source = f"Settings({name}=...)" if name in arguments else f"{ENV_PREFIX}{name.upper()}"
        sentences.append(
            f"{source} is {mistake['input']!r}, which cannot be used: {mistake['msg']}. "
            f"Correct it, or leave it away for the default ({_default_of(name)})"
        )
    return sentences


def _default_of(name: str) -> Any:
    default = Settings.model_fields[name].get_default(call_default_factory=True, validated_data={})
    return "off" if default is None else default
