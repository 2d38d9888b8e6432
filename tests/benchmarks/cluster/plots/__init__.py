"""The dashboards as pictures, for eyes that have no Grafana: the same panels, places, units and colours."""

from tests.benchmarks.cluster.plots.page import draw

__all__ = ["draw"]
