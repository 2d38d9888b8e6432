"""Every file that deploy/ holds, checked by whoever knows its kind: ``make check-deploy`` counts, the tests ask each.

``python -m tests.deploy.checks`` prints ``{"manifests_valid": ..., "refused": {...}, "not_checked": {...}}``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tests.deploy import compose_file, cross, hosts, kinds, kustomize, surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEPLOY = kinds.ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = tuple(sorted(path.name for path in (KUBERNETES / "overlays").iterdir()))


class NotHereError(Exception):
    """A tool or schema that the check needs is not on this machine."""


@dataclass(frozen=True, slots=True)
class Check:
    """One manifest and how to find what is wrong with it.

    ``complaints`` returns sentences, none for a valid one; it raises ``NotHereError`` where that cannot be told.
    """

    name: str
    complaints: Callable[[], list[str]]


@dataclass(frozen=True, slots=True)
class Counted:
    """What came of all checks."""

    valid: int
    refused: dict[str, list[str]]
    not_checked: dict[str, str]


def count() -> Counted:
    """Run every check."""
    refused: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    valid = 0
    for check in every():
        try:
            found = check.complaints()
        except NotHereError as error:
            missing[check.name] = str(error)
            continue
        valid += not found
        refused.update({check.name: found} if found else {})
    return Counted(valid, refused, missing)


def every() -> Iterator[Check]:
    """Yield the checks of all that deploy/ holds: each document of each overlay, each overlay as a whole, each file."""
    for overlay in OVERLAYS:
        documents = kustomize.build(KUBERNETES / "overlays" / overlay)
        for document in documents:
            name = f"{overlay}: {document['kind']} {document['metadata']['name']}"
            yield Check(name, lambda document=document: _object(document))  # type: ignore[misc]
        yield Check(f"{overlay}: all of it", lambda documents=documents: cross.contradictions(documents))  # type: ignore[misc]
    yield from _files()


def _files() -> Iterator[Check]:
    compose = DEPLOY / "compose" / "compose.yaml"
    yield Check("compose.yaml", lambda: compose_file.complaints(compose.read_text("utf-8"), compose.parent))
    yield Check("Dockerfile", lambda: hosts.dockerfile((DEPLOY / "docker/Dockerfile").read_text("utf-8")))
    for config in (compose.parent / "prometheus.yml", DEPLOY / "prometheus/prometheus.yml"):
        yield Check(
            f"{config.parent.name}/{config.name}",
            lambda config=config: promtool("config", "--syntax-only", config),
        )  # type: ignore[misc]
    for rules in (DEPLOY / "prometheus/rayguard.rules.yml", DEPLOY / "prometheus/rayguard.alerts.yml"):
        yield Check(rules.name, lambda rules=rules: promtool("rules", rules))  # type: ignore[misc]
    for unit in sorted((DEPLOY / "systemd").glob("*.service")):
        yield Check(unit.name, lambda unit=unit: _unit(unit))  # type: ignore[misc]
        yield Check(f"{unit.name} by systemd", lambda unit=unit: _verified(unit))  # type: ignore[misc]
    for config in sorted((DEPLOY / "ray").glob("*.yaml")):
        yield Check(f"ray/{config.name}", lambda config=config: _launcher(config))  # type: ignore[misc]
    variables = surroundings.file((DEPLOY / "ray/rayguard.env").read_text("utf-8"))
    yield Check("ray/rayguard.env", lambda: surroundings.complaints(dict(variables)))


def _object(document: kustomize.Document) -> list[str]:
    try:
        return kinds.complaints(document)
    except kinds.SchemaMissingError as error:
        raise NotHereError(str(error)) from error


def _unit(path: Path) -> list[str]:
    variables = surroundings.file((path.parent / "rayguard.env").read_text("utf-8"))
    return hosts.unit(path.read_text("utf-8"), variables)


def _verified(path: Path) -> list[str]:
    try:
        return hosts.verified(path)
    except FileNotFoundError as error:
        raise NotHereError(str(error)) from error


def _launcher(path: Path) -> list[str]:
    return hosts.launcher(yaml.safe_load(path.read_text("utf-8")), path.parent)


def promtool(*arguments: str | Path) -> list[str]:
    """Return what ``promtool check ...`` says of a file that it refuses."""
    if not (program := shutil.which("promtool")):
        raise NotHereError("promtool is not installed")
    done = subprocess.run(
        [program, "check", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    return [done.stdout + done.stderr] if done.returncode else []


if __name__ == "__main__":
    counted = count()
    report = {
        "manifests_valid": counted.valid,
        "refused": counted.refused,
        "not_checked": counted.not_checked,
    }
    sys.stdout.write(f"{json.dumps(report)}\n")
    sys.exit(bool(counted.refused))
