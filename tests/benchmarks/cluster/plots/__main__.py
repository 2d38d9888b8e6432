"""Draw the dashboards from what a Prometheus has stored: of a run of the check with ``--keep``, when it is over.

``python -m tests.benchmarks.cluster.plots FOLDER/prometheus/data PICTURES --since 2026-11-30T20:32:30``
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from datetime import datetime
from pathlib import Path

from tests.benchmarks.cluster.plots.answers import SCRAPED
from tests.benchmarks.cluster.plots.page import draw
from tests.benchmarks.cluster.prometheus import Prometheus

_LAST = f"max(max_over_time(timestamp({SCRAPED})[6h:15s]))"
# It was scraped every second. An agent that was killed together with Prometheus comes back at another port here:
# what it showed at the old one would stand beside the new for five minutes, and all sums be twice as high.
_GONE = "--query.lookback-delta=10s"
_NOT_COPIED = shutil.ignore_patterns("lock", "queries.active")


def main(arguments: list[str] | None = None) -> list[Path]:
    """Start a Prometheus that scrapes nothing on a copy of the data, and draw what it has."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("data", type=Path, help="what a Prometheus has stored")
    options.add_argument("pictures", type=Path, help="the folder for the pictures")
    options.add_argument("--since", type=_moment, help="from here on, else from the first scrape")
    options.add_argument("--until", type=_moment, help="as it was then, else at the last scrape")
    chosen = options.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rayguard-plots-") as made:
        folder = Path(made)
        shutil.copytree(chosen.data, folder / "data", ignore=_NOT_COPIED)
        with Prometheus(folder, "global: {}\n", _GONE) as server:
            until = chosen.until or _last(server)
            return draw(server, chosen.pictures, until=until, since=chosen.since)


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _last(server: Prometheus) -> float:
    found = server.ask(_LAST)
    if not found:
        raise SystemExit("no node was scraped in the last six hours: name a moment with --until")
    return float(found[0]["value"][1])


if __name__ == "__main__":
    for path in main():
        print(path)
