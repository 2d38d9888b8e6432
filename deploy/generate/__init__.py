"""Everything in the repository that is generated from rayguard's own lists: ``python -m deploy.generate``.

Alerts, recording rules and dashboards from the instruments (``rayguard.metrics.instruments``), the pages of
metrics and of the catalog in ``docs/``, and the copies for Kubernetes. Not in the wheel: no job needs it.
"""
