"""Which framework a command starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayguard.dialects.easyr1 import EASYR1
from rayguard.dialects.openrlhf import OPENRLHF
from rayguard.dialects.swift import SWIFT
from rayguard.dialects.trl import TRL
from rayguard.dialects.verl import VERL

if TYPE_CHECKING:
    from rayguard.dialects.dialect import Command, Dialect

# TRL's last: it is known by its script, which the others' words say more plainly.
DIALECTS: tuple[Dialect, ...] = (EASYR1, VERL, *OPENRLHF, SWIFT, TRL)


def dialect_of(command: Command) -> Dialect | None:
    """Return the dialect of the framework that a command starts; None for one that is not known."""
    return next((one for one in DIALECTS if one.speaks(command)), None)
