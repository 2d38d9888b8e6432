"""Alerts and recording rules as values, and the queries that they are made of."""
