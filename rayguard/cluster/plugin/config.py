"""What may stand under ``runtime_env={"rayguard": ...}``, and what is wrong with what stands there.

Read where a job or an actor is submitted and by the plugin of each node. Workers get the outcome, plain JSON
that needs no second look. Ray 2.60 hands the plugin one value: an actor's or a task's own ``"rayguard"``
stands *instead* of its job's, key by key it is never mixed (``env_vars`` are); what an actor leaves open has
the default, not what its job said. ``False`` switches off; so does ``None`` beside another key of the same
``runtime_env`` (alone, Ray takes ``{"rayguard": None}`` for no runtime environment: the job's holds).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rayguard.actors.mark import said_state
from rayguard.cluster.plugin.guard_marks import memory_policy
from rayguard.errors import ConfigError
from rayguard.options import nearest
from rayguard.preloading.runtime_env import is_module

KEY = "rayguard"
_WHERE = f'runtime_env["{KEY}"]'
_NAME = r"[^\W\d]\w*"
_PATH = re.compile(rf"{_NAME}(\.{_NAME})*:{_NAME}(\.{_NAME})*")
_DOTTED = re.compile(rf"{_NAME}(\.{_NAME})+")
_GROUP = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)


def _class_path(path: str) -> str:
    if _PATH.fullmatch(path):
        return path
    meant = f"; did you mean {':'.join(path.rsplit('.', 1))!r}?" if _DOTTED.fullmatch(path) else ""
    raise ValueError(f'a class is named "package.module:Class", not {path!r}{meant}')


def _module(name: str) -> str:
    if is_module(name):
        return name
    raise ValueError(f"modules are named as in an import statement, not {name!r}")


def _group(name: str) -> str:
    if _GROUP.fullmatch(name):
        return name
    raise ValueError(f"a group is named by at most 64 letters, digits, '_', '.' and '-', not {name!r}")


def _state(given: object) -> object:
    said_state(given)
    return list(given) if isinstance(given, tuple) else given


def _by_path(given: Any) -> Any:
    """Make a mapping of a list of class paths."""
    if isinstance(given, str):
        raise ValueError("it must be a list of class paths, or a mapping of class paths to options")  # noqa: TRY004 - pydantic's way
    if not isinstance(given, (list, tuple)):
        return given
    wrong = [path for path in given if not isinstance(path, str)]
    if wrong:
        raise ValueError(f'it lists class paths such as "package.module:Class", not {wrong[0]!r}')
    return {path: {} for path in given}


_ClassPath = Annotated[str, AfterValidator(_class_path)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NamedClass(_Strict):
    """How one class is guarded. A member of a ``group`` is not restarted alone."""

    state: Annotated[object, AfterValidator(_state)] = None
    idempotent: bool | None = None  # not said, which is no
    max_restarts: int | None = Field(default=None, ge=-1)
    max_task_retries: int | None = Field(default=None, ge=-1)
    group: Annotated[str, AfterValidator(_group)] | None = None


class Share(_Strict):
    """``Thresholds`` of the node: shares between 0 and 1."""

    soft: float
    hard: float


class Budget(_Strict):
    """A ``RestartBudget``."""

    max_restarts: int
    within_s: float


class MemorySettings(_Strict):
    """A ``MemoryPolicy``; what is left open has its default, but no process is recycled unless asked for."""

    node: Share | None = None
    process_limit: int | None = None
    horizon_s: float | None = None
    horizon_steps: int | None = None
    recycle: Literal["state", "stateless"] | None = None
    recycle_budget: Budget | None = None
    step: str | None = None
    interval_s: float | None = None


class PluginConfig(_Strict):
    """All that the plugin can be told; ``{}`` watches every worker and guards no class by name."""

    guard: Annotated[dict[_ClassPath, NamedClass], BeforeValidator(_by_path)] = Field(default_factory=dict)
    watch: bool = True
    memory: MemorySettings | Literal[False] | None = None
    flight_recorder: bool = True
    metrics: bool = True
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    home: str | None = Field(default=None, min_length=1, pattern=r"^[/~]")
    frameworks: bool = True
    preload: list[Annotated[str, AfterValidator(_module)]] = Field(default_factory=list)
    new_replicas: bool = False  # of verl's rollouts, for lost ones
    agent: bool = True
    supervisor: bool = True


def asked(given: Any) -> dict[str, Any] | None:
    """Return what ``given`` asks for as plain JSON, every key present; None: rayguard is off.

    Raises:
        ConfigError: One sentence for each mistake, with the key, what is allowed and the nearest known key.
    """
    if given is None or given is False:
        return None
    if given is True:
        given = {}
    if not isinstance(given, dict):
        raise ConfigError(
            f"{_WHERE} is {given!r}, which cannot be used: it takes a mapping ({{}} watches every worker), "
            "or False to switch rayguard off"
        )
    try:
        config = PluginConfig.model_validate(given)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentences(error))) from error
    plain = config.model_dump(mode="json")
    if isinstance(plain["memory"], dict):
        plain["memory"] = {k: v for k, v in plain["memory"].items() if v is not None}
        _check_memory(plain["memory"])
    return plain


def _check_memory(memory: dict[str, Any]) -> None:
    try:
        memory_policy(memory)
    except ConfigError as error:
        raise ConfigError(f'{_WHERE}["memory"]: {error}') from error


_OFF = "literal[False]"  # what pydantic calls the branch of ``memory: False``
# Pydantic's words for keys of mappings and for branches.
_NOT_KEYS = frozenset({"[key]", "MemorySettings", _OFF})
_MAPPING = frozenset({"dict_type", "model_type"})


def _sentences(error: ValidationError) -> list[str]:
    found = [one for one in error.errors(include_url=False) if _OFF not in one["loc"]]
    return list(dict.fromkeys(_sentence(one) for one in found))


def _sentence(error: Any) -> str:
    keys = [str(part) for part in error["loc"] if part not in _NOT_KEYS]
    where = _WHERE + "".join(f'["{key}"]' for key in keys)
    if error["type"] == "extra_forbidden":
        known = list(_model(keys[:-1]).model_fields)
        near = nearest(keys[-1], known)
        meant = f"did you mean {near!r}? " if near else ""
        return f"{where} is not known; {meant}Known are {', '.join(known)}"
    if error["type"] == "missing":
        return f"{where} is missing"
    said = error["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    if error["type"] in _MAPPING:
        said = "it must be a mapping" + (" or False" if keys == ["memory"] else "")
    return f"{where} is {error['input']!r}, which cannot be used: {said}"


def _model(keys: list[str]) -> type[_Strict]:
    models: dict[str, type[_Strict]] = {"guard": NamedClass, "memory": MemorySettings}
    inner: dict[str, type[_Strict]] = {"node": Share, "recycle_budget": Budget}
    if keys[1:] and keys[0] == "memory":
        return inner.get(keys[1], MemorySettings)
    return models.get(keys[0], PluginConfig) if keys else PluginConfig
