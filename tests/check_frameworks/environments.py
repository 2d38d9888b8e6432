"""One environment for each framework, made on demand: their packages cannot share one.

``uv`` makes them with hard links from its cache. They lie in ``run/frameworks/NAME``, and are made anew where what is
asked of them has changed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "run" / "frameworks"
_INSTALL_S = 1800


@dataclass(frozen=True)
class FrameworkEnvironment:
    """What one framework needs, rayguard and its Ray aside. ``overrides`` win over what packages ask for."""

    name: str
    packages: tuple[str, ...]
    overrides: tuple[str, ...] = ()


def python_of(wanted: FrameworkEnvironment) -> Path:
    """Return the Python of an environment, which is made first where it is not there as it is wanted."""
    folder = PLACE / wanted.name
    python, note = folder / "bin" / "python", folder / "wanted.json"
    said = json.dumps({**asdict(wanted), "python": sys.version})
    if python.exists() and note.exists() and note.read_text("utf-8") == said:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _uv("venv", "--quiet", "--python", sys.executable, str(folder))
    overrides = folder / "overrides.txt"
    overrides.write_text("\n".join(wanted.overrides), "utf-8")
    _uv(
        "pip", "install", "--quiet", "--python", str(python), "--overrides", str(overrides),
        "--editable", str(ROOT), *wanted.packages,
    )  # fmt: skip
    for theirs in folder.glob("lib/python*/site-packages/tests"):
        shutil.rmtree(theirs)  # some bring their own: it would stand before ours
    note.write_text(said, "utf-8")
    return python


def unpack(package: str, folder: Path) -> None:
    """Put one package alone into a folder, with all that it brings: its own tests too."""
    _uv(
        "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", str(folder), package
    )


def _uv(*arguments: str) -> None:
    found = shutil.which("uv")
    command = [found] if found else [sys.executable, "-m", "uv"]
    subprocess.run([*command, *arguments], check=True, timeout=_INSTALL_S, env=os.environ)
