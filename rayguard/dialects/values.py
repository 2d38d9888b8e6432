"""What stands after an equals sign, as a value; a YAML file by dotted keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def value_of(text: str) -> Any:
    """Return a value as YAML 1.1 and OmegaConf read it: numbers, true and false, null, text."""
    import yaml  # noqa: PLC0415 - only where a command is read

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str):
        try:
            return float(value) if any(one in value for one in ".e") else value  # 1e-6 is text to YAML 1.1
        except ValueError:
            return value
    return value


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Return a file of settings.

    Raises:
        ConfigError: It is not there, or no mapping.
    """
    import yaml  # noqa: PLC0415

    try:
        found = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no YAML: {str(error).splitlines()[0]}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no settings by name")
    return found


def flat(found: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested settings by their dotted names."""
    flattened: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            flattened |= flat(value, f"{before}{name}.")
        else:
            flattened[f"{before}{name}"] = value
    return flattened
