"""Whether a checkpoint is whole: all that its own files name is there, and none of them ends early.

Reads names, sizes, heads and ends of files, and small JSON; no tensor. What stands in the tensors is
``tensor_look``'s; which checkpoint comes first, ``checkpoint_look``'s.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from rayguard.engine.weights.tensorfile import read_header
from rayguard.errors import WeightsError
from rayguard.runner.torch_file import UnreadableError, require_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_TORCH = frozenset({".pt", ".pth", ".bin"})
_TENSORS = frozenset({*_TORCH, ".safetensors", ".distcp"})
_MOST_JSON = 64 << 20
_STEP = re.compile(r"(\d+)$")
_OF_TRAINER = re.compile(r"checkpoint-\d+")
# verl, EasyR1: one file for each rank, and the number of ranks in each name.
_RANKED = re.compile(r"(model|optim|extra_state)_world_size_(\d+)_rank_(\d+)\.pt")
_KINDS = ("model", "optim", "extra_state")
# DeepSpeed and transformers: numbered from 0, and the number of them nowhere.
_NUMBERED = (
    re.compile(r"((?:bf16_|fp16_)?zero_pp_rank_)(\d+)(_mp_rank_\d+_(?:optim|model)_states\.pt)"),
    re.compile(r"(mp_rank_)(\d+)(_model_states\.pt)"),
    re.compile(r"(rng_state_)(\d+)(\.pth)"),
)
_TRACKERS = (
    ("checkpoint_tracker.json", "last_global_step"),  # EasyR1
    ("latest_checkpointed_iteration.txt", ""),  # verl
)


class NotWholeError(Exception):
    """Something of the checkpoint is missing or ends early; the text says what."""


class UnsureError(Exception):
    """Nothing is known to be missing, and it is not proven that nothing is."""


def require_parts(checkpoint: Path, folder: Path) -> tuple[Path, ...]:
    """Return the files of a checkpoint below ``folder`` that hold tensors.

    Raises:
        NotWholeError: It is not whole.
        UnsureError: It is of no kind that can be judged here.
        OSError: A file cannot be read.
    """
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    tensors = tuple(path for path in files if path.suffix in _TENSORS)
    if not tensors:
        raise NotWholeError("it holds no weights")
    for check in (_named_by_indexes, _ranks, _numbers, _deepspeed):
        check(checkpoint, files)
    _trainer_state(checkpoint)
    _trackers(checkpoint, folder)
    for path in tensors:
        _whole(path, path.relative_to(checkpoint))
    return tensors


def _whole(path: Path, name: Path) -> None:
    if path.suffix == ".safetensors":
        try:
            with path.open("rb") as stream:
                read_header(stream, str(name))
        except WeightsError as error:
            raise NotWholeError(str(error)) from error
    elif path.suffix == ".distcp":
        if not (path.parent / ".metadata").is_file():
            raise NotWholeError(f"{name.parent} has no .metadata, which is written last")
        raise UnsureError(f"{name}: shards of torch.distributed.checkpoint are not looked into")
    else:
        try:
            require_whole(path)
        except ValueError as error:
            raise NotWholeError(f"{name}: {error}") from error
        except UnreadableError as error:
            raise UnsureError(f"{name}: {error}") from error


def _named_by_indexes(checkpoint: Path, files: Sequence[Path]) -> None:
    """Each shard that an index names lies beside it."""
    for index in (path for path in files if path.name.endswith(".index.json")):
        said = _json(index, checkpoint)
        shards = said.get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise NotWholeError(f"{index.relative_to(checkpoint)} names no shards")
        missing = sorted({str(name) for name in shards.values() if not (index.parent / str(name)).is_file()})
        if missing:
            raise NotWholeError(f"{len(missing)} shards that {index.name} names are missing: {missing[0]}")


def _ranks(checkpoint: Path, files: Sequence[Path]) -> None:
    """Each rank has each of its files (verl, EasyR1)."""
    found: dict[Path, dict[str, set[tuple[int, int]]]] = defaultdict(lambda: defaultdict(set))
    for path in files:
        named = _RANKED.fullmatch(path.name)
        if named is not None:
            found[path.parent][named[1]].add((int(named[2]), int(named[3])))
    for place, kinds in found.items():
        worlds = {world for seen in kinds.values() for world, _ in seen}
        where = place.relative_to(checkpoint)
        if len(worlds) > 1:
            raise UnsureError(f"{where} holds files of {sorted(worlds)} ranks")
        world = max(worlds)
        for kind, seen in kinds.items():
            missing = sorted(set(range(world)) - {rank for _, rank in seen})
            if missing:
                name = f"{kind}_world_size_{world}_rank_{missing[0]}.pt"
                raise NotWholeError(f"{where}/{name} is missing ({len(missing)} of {world} ranks)")
        left = [kind for kind in _KINDS if kind not in kinds]
        if left:
            raise UnsureError(f"{where} has no {left[0]} files: whole only if none were asked for")


def _numbers(checkpoint: Path, files: Sequence[Path]) -> None:
    """No number is left out where files are numbered."""
    found: dict[tuple[Path, str, str], set[int]] = defaultdict(set)
    for path in files:
        for named in filter(None, (pattern.fullmatch(path.name) for pattern in _NUMBERED)):
            found[path.parent, named[1], named[3]].add(int(named[2]))
    for (place, begin, end), numbers in found.items():
        missing = sorted(set(range(max(numbers) + 1)) - numbers)
        if missing:
            where = place.relative_to(checkpoint)
            raise NotWholeError(f"{where / f'{begin}{missing[0]}{end}'} is missing")


def _deepspeed(checkpoint: Path, files: Sequence[Path]) -> None:
    """What the tag file names is there."""
    for latest in (path for path in files if path.name == "latest"):
        tag = latest.read_text("utf-8", "replace").strip()
        if not tag or not (latest.parent / tag).is_dir():
            raise NotWholeError(f"{latest.relative_to(checkpoint)} names {tag!r}, which is not there")


def _trainer_state(checkpoint: Path) -> None:
    """A trainer of transformers writes its own state last, and no resume goes without it."""
    if _OF_TRAINER.fullmatch(checkpoint.name) is None:
        return
    state = checkpoint / "trainer_state.json"
    if not state.is_file():
        raise NotWholeError("trainer_state.json, which is written last, is missing")
    said = _json(state, checkpoint).get("global_step")
    if said != _step_of(checkpoint):
        raise NotWholeError(f"trainer_state.json is of step {said}")


def _trackers(checkpoint: Path, folder: Path) -> None:
    """Where a file says which checkpoint was finished last, no later one is."""
    for name, key in _TRACKERS:
        tracker = next(
            (place / name for place in (checkpoint.parent, folder) if (place / name).is_file()), None
        )
        step = _step_of(checkpoint)
        if tracker is None or step is None:
            continue
        try:
            said = tracker.read_text("utf-8")
            finished = int(json.loads(said)[key]) if key else int(said)
        except (ValueError, KeyError, TypeError):
            raise UnsureError(f"{name} cannot be read: it may just have been written") from None
        if step > finished:
            raise NotWholeError(f"{name} says that step {finished} was the last to be finished")


def _json(path: Path, checkpoint: Path) -> dict[str, object]:
    name = path.relative_to(checkpoint)
    if path.stat().st_size > _MOST_JSON:
        raise UnsureError(f"{name} is too large to be read")
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise NotWholeError(f"{name} cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise NotWholeError(f"{name} holds no names")
    return found


def _step_of(checkpoint: Path) -> int | None:
    named = _STEP.search(checkpoint.name)
    return int(named[1]) if named is not None else None


def newest_first(checkpoints: Iterator[Path], folder: Path) -> list[Path]:
    """Return folders of checkpoints below ``folder`` by the numbers in their names: launch, then step."""

    def numbers(path: Path) -> list[list[int]]:
        return [[int(one) for one in re.findall(r"\d+", part)] for part in path.relative_to(folder).parts]

    return sorted((path for path in checkpoints if path.is_dir()), key=numbers, reverse=True)
