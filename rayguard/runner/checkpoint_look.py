"""The newest checkpoint that a run may go on from: whole, and finite in every tensor.

The newest of all may be the one that ends the run again: half-written as the process died, or written from
weights that one NaN had spoiled. Names and sizes are looked at here (``checkpoint_parts``), tensors in a
process of their own (``tensor_look``), so that the caller loads nothing and a deadline holds. Nothing is
changed or deleted, and no code that a checkpoint names is run. What cannot be proven in time is told as that,
and is never called good.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from enum import Enum
from typing import IO, TYPE_CHECKING, Literal, TypedDict

from rayguard.errors import ConfigError
from rayguard.runner.checkpoint_parts import NotWholeError, UnsureError, newest_first, require_parts

if TYPE_CHECKING:
    from pathlib import Path

    from rayguard.dialects.dialect import CheckpointPlace

_PROGRAM = "rayguard.runner.tensor_look"
_MOST_FILES = 512  # of one start of the program: a command line is bounded
_TO_END_S = 5.0


class _Answer(TypedDict):
    file: str
    bad: str
    unsure: str


class CheckpointProof(str, Enum):
    """What is known of a checkpoint."""

    GOOD = "good"  # whole and finite
    BAD = "bad"  # it is proven that it is not
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class CheckpointLook:
    """What was found out about one checkpoint, and why."""

    path: Path
    proof: CheckpointProof
    why: str = ""

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.path}: {self.proof.value}" + (f", {self.why}" if self.why else "")


@dataclass(frozen=True, slots=True)
class CheckpointVerdict:
    """The newest good checkpoint, and those that are newer and were passed over, newest first.

    ``good`` is None where none was found. Older ones than ``good`` were not looked at.
    """

    good: Path | None
    passed_over: tuple[CheckpointLook, ...] = ()

    @property
    def rejected(self) -> tuple[CheckpointLook, ...]:
        """Those that are proven to be bad."""
        return tuple(one for one in self.passed_over if one.proof is CheckpointProof.BAD)

    @property
    def undecided(self) -> tuple[CheckpointLook, ...]:
        """Those of which nobody knows: they may be good."""
        return tuple(one for one in self.passed_over if one.proof is CheckpointProof.UNDECIDED)

    def __str__(self) -> str:
        """Say it in one line for each checkpoint."""
        last = "no checkpoint is proven good" if self.good is None else f"{self.good}: good"
        return "\n".join([*map(str, self.passed_over), last])


def newest_good(place: CheckpointPlace, *, deadline_s: float) -> CheckpointVerdict:
    """Return the newest checkpoint of ``place`` that is whole and finite, and what was passed over for it.

    Args:
        place: Where a command's framework keeps them.
        deadline_s: How long it may take in all.

    Raises:
        ConfigError: The deadline is none.
    """
    if not deadline_s > 0:
        raise ConfigError(f"deadline_s must be more than 0 seconds, got {deadline_s}")
    until = time.monotonic() + deadline_s
    passed_over: list[CheckpointLook] = []
    for checkpoint in newest_first(place.folder.glob(place.pattern), place.folder):
        found = look_at(checkpoint, place.folder, until=until)
        if found.proof is CheckpointProof.GOOD:
            return CheckpointVerdict(checkpoint, tuple(passed_over))
        passed_over.append(found)
    return CheckpointVerdict(None, tuple(passed_over))


def look_at(checkpoint: Path, folder: Path, *, until: float) -> CheckpointLook:
    """Return what is known of one checkpoint below ``folder`` by ``until`` (of ``time.monotonic``)."""
    if time.monotonic() >= until:
        return CheckpointLook(checkpoint, CheckpointProof.UNDECIDED, "there was no time left to look at it")
    try:
        files = require_parts(checkpoint, folder)
    except NotWholeError as error:
        return CheckpointLook(checkpoint, CheckpointProof.BAD, str(error))
    except UnsureError as error:
        return CheckpointLook(checkpoint, CheckpointProof.UNDECIDED, str(error))
    except OSError as error:
        return CheckpointLook(checkpoint, CheckpointProof.UNDECIDED, f"it cannot be read ({error})")
    unsure = ""
    for first in range(0, len(files), _MOST_FILES):
        bad, why = _look_into(files[first : first + _MOST_FILES], checkpoint, until)
        if bad:
            return CheckpointLook(checkpoint, CheckpointProof.BAD, bad)
        unsure = unsure or why
    return CheckpointLook(checkpoint, CheckpointProof.UNDECIDED if unsure else CheckpointProof.GOOD, unsure)


def _look_into(files: tuple[Path, ...], checkpoint: Path, until: float) -> tuple[str, str]:
    """Return what is wrong with the tensors of ``files``, and why that is not known; '' for neither."""
    command = [sys.executable, "-m", _PROGRAM, *map(str, files)]
    answers: list[_Answer] = []
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as program:
        assert program.stdout is not None
        reader = threading.Thread(target=_read, args=(program.stdout, answers, said), daemon=True)
        reader.start()
        reader.join(max(0.0, until - time.monotonic()))
        in_time = not reader.is_alive()
        program.kill()
        reader.join(_TO_END_S)
    bad, unsure = (_first(answers, checkpoint, kind) for kind in ("bad", "unsure"))
    if bad or len(answers) == len(files):
        return bad, unsure
    if not in_time:
        return "", f"only {len(answers)} of {len(files)} files could be read in time"
    return "", f"the look at its tensors failed: {said[-1] if said else 'it ended without a word'}"


def _first(answers: list[_Answer], checkpoint: Path, kind: Literal["bad", "unsure"]) -> str:
    return next(
        (f"{one['file'].removeprefix(f'{checkpoint}/')}: {one[kind]}" for one in answers if one[kind]), ""
    )


def _read(out: IO[str], answers: list[_Answer], said: list[str]) -> None:
    """Take in what the program says, until a file is bad or it has ended."""
    for line in out:
        if not line.startswith("{"):
            said.append(line.strip())
            continue
        answers.append(json.loads(line))
        if answers[-1]["bad"]:
            return
