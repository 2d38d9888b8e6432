"""Runs once more, one after the other, the tests that failed beside others: ``make test`` does it at its end.

Engines and clusters wait for much, and what takes a second alone may take a minute beside three others on two
cores. A test that fails here as well has failed; one that passes is printed, for somebody to look at. Where many
failed, or none is known (the run itself broke off), nothing is run again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

MOST = 5
_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    """Return 0 where all that failed passes now."""
    names = sorted(json.loads(_FAILED.read_text())) if _FAILED.exists() else []
    if not 0 < len(names) <= MOST:
        print(f"{len(names)} tests are known to have failed: none is run once more")
        return 1
    print(f"{len(names)} failed beside others; once more, alone:", *names, sep="\n  ", flush=True)
    code = int(pytest.main(["-v", *names]))
    if code == 0:
        print("passed alone, and failed beside others:", *names, sep="\n  ")
    return code


if __name__ == "__main__":
    sys.exit(main())
