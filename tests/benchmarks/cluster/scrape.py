"""prometheus.yml for the check: every second, with rayguard's own rules and alerts in time lapse.

An alert looks back over minutes and waits for minutes before it is told (``deploy.generate.queries.sooner``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from deploy.generate.queries import sooner

if TYPE_CHECKING:
    from pathlib import Path

FASTER = 60.0
SCRAPE_S = 1


def config(folder: Path, discovery: Path, rules: list[Path]) -> str:
    """Write the rules in time lapse into ``folder``; return a prometheus.yml that finds nodes in ``discovery``."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / path.name for path in rules]
    for path, quick in zip(rules, files, strict=True):
        quick.write_text(yaml.safe_dump(sooner(yaml.safe_load(path.read_text()), FASTER), width=1000))
    scrape = {
        "job_name": "rayguard",
        "file_sd_configs": [{"files": [str(discovery)], "refresh_interval": "1s"}],
    }
    every = f"{SCRAPE_S}s"
    told = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(quick) for quick in files],
        "scrape_configs": [scrape],
    }
    return yaml.safe_dump(told)
