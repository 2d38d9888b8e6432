"""The wheel in a clean environment, by the README's own commands, which are read there and not repeated here.

Only ``rayguard`` in them becomes the file of the wheel. Where a torch for the CPU lies is the installers' own
configuration (``PIP_FIND_LINKS``; uv, which reads no configuration of pip's, is told the same).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from tests.as_printed.pages import ROOT, blocks_of

_BUILD_S, _INSTALL_S = 300, 1_500
_TAIL = 2_000
_UV = ["uv"] if which("uv") else [sys.executable, "-m", "uv"]


class InstallError(Exception):
    """A step failed; the message is the command and the end of what it said."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A new environment in ``folder``, of the Python ``version``, filled by "pip" or "uv"."""

    folder: Path
    version: str
    by: str = "uv"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def make(self) -> None:
        without = ["--without-pip"] if self.by == "uv" else []
        _do([python_of(self.version), "-m", "venv", *without, str(self.folder)], _BUILD_S)

    def install(self, command: str, wheel: Path, *more: str) -> None:
        """Carry out ``command``, some ``pip install``, with ``more`` options. Raises ``InstallError``."""
        for step in command.partition("#")[0].split("&&"):
            _, install, *words = shlex.split(step)
            named = [re.sub(r"^rayguard(\[.*\])?$", rf"{wheel}\1", word) for word in words]
            if self.by == "uv":
                _do(
                    [*_UV, "--quiet", "pip", install, "--python", str(self.python), *more, *named], _INSTALL_S
                )
            else:
                _do([str(self.python), "-m", "pip", "--quiet", install, *more, *named], _INSTALL_S)


def build(folder: Path) -> Path:
    """Return a wheel of this checkout in ``folder``."""
    _do([*_UV, "--quiet", "build", "--wheel", "--out-dir", str(folder), str(ROOT)], _BUILD_S)
    [wheel] = folder.glob("rayguard-*.whl")
    return wheel


def python_of(version: str) -> str:
    """Return a Python of this machine; '' where there is none. None is fetched."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    kept = [str(path) for path in sorted(pyenv.glob(f"versions/{version}.*/bin/python"))]
    asked = [sys.executable, which(f"python{version}"), *kept]  # pyenv's own python3.x may stand for none
    return next((python for python in asked if python and _says_it_is(python, version)), "")


def _says_it_is(python: str, version: str) -> bool:
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    run = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return run.stdout.strip() == version


def printed_commands() -> dict[str, str]:
    """Return the README's commands that install rayguard, by their extra."""
    typed = [
        c for block in blocks_of(ROOT / "README.md") for c in block.commands if block.language == "console"
    ]
    return {
        found[1]: command
        for command in typed
        if (found := re.match(r"pip install 'rayguard\[([a-z-]+)\]'", command))
    }


def _do(command: list[str], deadline_s: float) -> None:
    links = os.environ.get("PIP_FIND_LINKS", "")
    environment = ({"UV_FIND_LINKS": links} if links else {}) | dict(os.environ)
    environment.pop("PYTHONPATH", None)
    run = subprocess.run(
        command, env=environment, cwd="/", capture_output=True, text=True, timeout=deadline_s, check=False
    )
    if run.returncode:
        raise InstallError(f"{shlex.join(command)}: {(run.stdout + run.stderr)[-_TAIL:]}")
