"""Nodes and jobs: the plugin, the node agents, the supervisors."""
