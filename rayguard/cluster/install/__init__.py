"""Agents and supervisors brought up on a running cluster, and taken down."""
