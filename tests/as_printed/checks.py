"""What is wrong with a block that is no Python, or with a runbook's commands; nothing is run for it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import yaml

from tests.as_printed.commands import commands_of, problem_of
from tests.as_printed.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.as_printed.pages import Block


def problem_of_block(block: Block) -> str:
    """Say what is wrong; '' where nothing is, and for Python, which is run."""
    check = _CHECKS.get(block.language)
    if check is None:
        return f"nobody checks blocks of {block.language!r}: say what it is, python, {', '.join(_CHECKS)}"
    return check(block)


def problem_of_runbook(page: Path) -> str:
    """Say which of the commands that it asks for could not be typed."""
    return "; ".join(filter(None, map(problem_of, commands_of(page))))


def _console(block: Block) -> str:
    if not block.commands:
        return "nothing is typed: a line that is has `$ ` before it"
    return "; ".join(filter(None, map(problem_of, block.commands)))


def _yaml(block: Block) -> str:
    try:
        return "" if isinstance(yaml.safe_load(block.text), dict) else "no mapping"
    except yaml.YAMLError as error:
        return str(error)


def _promql(block: Block) -> str:
    return "" if " ".join(block.text.split()) in _alerts() else "not the expression of any alert"


@cache
def _alerts() -> frozenset[str]:
    """Return what the alerts ask, which ``tests/deploy`` and ``make check-deploy`` hold against Prometheus."""
    groups = yaml.safe_load((ROOT / "deploy/prometheus/rayguard.alerts.yml").read_text())["groups"]
    return frozenset(" ".join(rule["expr"].split()) for group in groups for rule in group["rules"])


_CHECKS: dict[str, Callable[[Block], str]] = {
    "console": _console,
    "yaml": _yaml,
    "promql": _promql,
    "text": lambda _: "",  # a drawing
    "python": lambda _: "",
}
