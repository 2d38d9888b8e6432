"""A program of its own: ``python -m rayguard.runner.tensor_look FILE...`` says whether tensors are finite.

One line of JSON for each file, as soon as it was read: ``{"file": ..., "bad": ..., "unsure": ...}``, both
empty for a file without NaN and infinity in any tensor of floating numbers. It imports numpy alone, and
nothing of what a file names is run. Who starts it, and how long it may take, is ``checkpoint_look``'s.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rayguard.engine.weights.tensorfile import first_non_finite, read_header
from rayguard.errors import WeightsError
from rayguard.runner.torch_file import UnreadableError, tensors


def look(path: Path) -> tuple[str, str]:
    """Return what is wrong with the tensors of a file, and why that is not known; both '' if all is well."""
    try:
        with path.open("rb") as stream:
            entries = read_header(stream, path.name) if path.suffix == ".safetensors" else tensors(path)
            name = first_non_finite(stream, entries)
    except (WeightsError, ValueError) as error:
        return str(error), ""
    except (UnreadableError, OSError, ImportError) as error:
        return "", str(error)
    return ("", "") if name is None else (f"NaN or infinity in {name}", "")


def main(paths: list[str]) -> None:
    """Look at each file in turn."""
    for path in paths:
        bad, unsure = look(Path(path))
        print(json.dumps({"file": path, "bad": bad, "unsure": unsure}), flush=True)  # noqa: T201 - its answer


if __name__ == "__main__":
    main(sys.argv[1:])
