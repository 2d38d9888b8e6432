"""OpenRLHF: the engines of its rollout actors, the weights that they were pushed, the group these came by."""
