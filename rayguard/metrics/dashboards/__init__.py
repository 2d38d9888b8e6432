"""Dashboards as values, and what writes them down for Grafana (``python -m rayguard.metrics.dashboards``)."""
