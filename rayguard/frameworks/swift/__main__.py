"""``python -m rayguard.frameworks.swift`` prints the file for ``--external_plugins``."""

from __future__ import annotations

from rayguard.frameworks.swift import PLUGIN

print(PLUGIN)  # noqa: T201 - for a command line
