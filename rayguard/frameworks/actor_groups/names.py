"""What a group of OpenRLHF has its handles under, and what is put beside them. Imports nothing."""

from __future__ import annotations

HANDLES = "_actor_handlers"
MARK = "_rayguard_group"  # plain values: they travel with the group to processes in which rayguard may not be
WITHIN = "_rayguard_within"
KEPT = "_rayguard_kept"
