"""The file for ms-swift's ``--external_plugins``: attaches, then ``--callbacks rayguard`` names the callback.

Trainers and rollout workers import it by its path, so that its name is its own in every process.
"""

from __future__ import annotations

from rayguard.frameworks.startup import attach

attach()
