"""``RolloutPool``: many rollout actors behind one ``generate``, nothing lost when some of them die."""
