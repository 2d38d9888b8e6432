"""Loaded as each Python of a server of ms-swift begins, or of a client: what needs a GPU is met on the CPU."""

from tests.check_frameworks.swift_parts.cpu import attach

attach()
