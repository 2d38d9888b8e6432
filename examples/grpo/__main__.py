"""``python -m examples.grpo``."""

from __future__ import annotations

import os


def start() -> None:
    """Run the demo with its own words only: Ray, which reads this when imported, would tell of each death."""
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "(?s).*(A worker died|will be retried)")
    from examples.grpo.main import run  # noqa: PLC0415

    run()


start()
