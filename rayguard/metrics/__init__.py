"""Prometheus: collectors that read state at scrape time, and one endpoint per process."""
