"""``python -m deploy.generate [--docs-url URL] [ROOT]``: write all generated files below ROOT."""

from __future__ import annotations

import argparse
from pathlib import Path

from deploy.generate.alerts.alert import DOCS_URL
from deploy.generate.files import files


def main(arguments: list[str] | None = None) -> None:
    """Write them; those that are no longer generated are left, and a test tells of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path(), help="of the repository (here)")
    parser.add_argument("--docs-url", default=DOCS_URL, help="where your copy of docs/ is served")
    asked = parser.parse_args(arguments)
    for name, text in files(asked.root, asked.docs_url.rstrip("/")).items():
        target = asked.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
