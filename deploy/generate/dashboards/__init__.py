"""Dashboards as values, and how one is written down for Grafana."""
