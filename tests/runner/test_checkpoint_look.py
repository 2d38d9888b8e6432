"""The newest good checkpoint: whole and finite, of the real formats; what is not proven is never called good."""

from __future__ import annotations

import json
import os
import pickle
import struct
import time
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from rayguard.dialects.dialect import CheckpointPlace
from rayguard.errors import ConfigError
from rayguard.runner import checkpoint_look, tensor_look
from rayguard.runner.checkpoint_look import CheckpointProof, newest_good

IN_TIME_S = 120.0  # a start of Python and numpy, on a machine that does other things


def place_of(folder, pattern="checkpoint-*"):
    return CheckpointPlace(folder=folder, pattern=pattern, saves=True, resumes_newest=False)


def weights(spoiled=None, dtype=torch.float32):
    made = {
        "a.weight": torch.ones(64, 3, dtype=dtype),
        "b.weight": torch.arange(6).to(dtype),
        "ids": torch.arange(5),
    }
    if spoiled is not None:
        made["b.weight"] = made["b.weight"].clone().float()
        made["b.weight"][4] = spoiled
        made["b.weight"] = made["b.weight"].to(dtype)
    return made


def trainer_checkpoint(folder, step, spoiled=None):
    """Write what a trainer of transformers writes, in its order."""
    made = folder / f"checkpoint-{step}"
    made.mkdir(parents=True)
    save_file(weights(spoiled), made / "model.safetensors")
    adam = {
        "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.zeros(7)}},
        "param_groups": [{"lr": 1e-3}],
    }
    torch.save(adam, made / "optimizer.pt")
    torch.save({"last_epoch": step}, made / "scheduler.pt")
    torch.save({"python": (3, (1, 2), None), "cpu": torch.get_rng_state()}, made / "rng_state.pth")
    (made / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
    return made


def ranked_checkpoint(folder, step, world=2, kinds=("model", "optim", "extra_state"), spoiled=None):
    """Write what EasyR1 and verl write: each rank its own files, the tracker last."""
    made = folder / f"global_step_{step}" / "actor"
    made.mkdir(parents=True)
    for rank in range(world):
        for kind in kinds:
            tensors = {f"{kind}.{rank}": torch.ones(9)}
            if spoiled is not None and kind == "optim" and rank == world - 1:
                tensors[f"{kind}.{rank}"][3] = spoiled
            torch.save(tensors, made / f"{kind}_world_size_{world}_rank_{rank}.pt")
    (folder / "checkpoint_tracker.json").write_text(json.dumps({"last_global_step": step}))
    return made.parent


def test_the_newest_of_good_ones_is_taken_and_nothing_is_changed(tmp_path):
    """By its number, not by its name or its time."""
    for step in (9, 10, 100):
        trainer_checkpoint(tmp_path, step)
    os.utime(tmp_path / "checkpoint-9")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    found = newest_good(place_of(tmp_path), deadline_s=IN_TIME_S)
    assert (found.good, found.passed_over) == (tmp_path / "checkpoint-100", ())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("spoiled", [float("nan"), float("inf"), float("-inf")])
def test_a_poisoned_checkpoint_is_passed_over_with_its_tensor(tmp_path, spoiled):
    """One number in one tensor is enough."""
    trainer_checkpoint(tmp_path, 2)
    trainer_checkpoint(tmp_path, 4, spoiled)
    found = newest_good(place_of(tmp_path), deadline_s=IN_TIME_S)
    assert found.good == tmp_path / "checkpoint-2"
    (one,) = found.rejected
    assert one.path == tmp_path / "checkpoint-4"
    assert one.why == "model.safetensors: NaN or infinity in b.weight"
    assert "good" in str(found)
    assert "NaN" in str(found)


def cut(path, to=0.6):
    os.truncate(path, int(path.stat().st_size * to))


def index(made):
    (made / "model.safetensors").rename(made / "model-00001-of-00002.safetensors")
    shards = {"a.weight": "model-00001-of-00002.safetensors", "c.weight": "model-00002-of-00002.safetensors"}
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


BROKEN = {
    "weights cut off": (lambda made: cut(made / "model.safetensors"), "model.safetensors"),
    "weights empty": (lambda made: os.truncate(made / "model.safetensors", 0), "is empty"),
    "optimizer cut off": (lambda made: cut(made / "optimizer.pt"), "optimizer.pt: it is cut off"),
    "optimizer empty": (lambda made: os.truncate(made / "optimizer.pt", 0), "optimizer.pt: it is empty"),
    "state missing": (lambda made: (made / "trainer_state.json").unlink(), "trainer_state.json"),
    "state cut off": (lambda made: cut(made / "trainer_state.json"), "trainer_state.json cannot be read"),
    "state of another": (
        lambda made: (made / "trainer_state.json").write_text('{"global_step": 3}'),
        "of step 3",
    ),
    "shard missing": (index, "model-00002-of-00002.safetensors"),
    "no weights": (
        lambda made: [path.unlink() for path in made.glob("*.*") if path.suffix != ".json"],
        "no weights",
    ),
    "a rank's random numbers missing": (
        lambda made: (made / "rng_state.pth").rename(made / "rng_state_1.pth"),
        "rng_state_0.pth is missing",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_not_whole_is_told_and_passed_over(tmp_path, name):
    """As it lies there after a process died while it saved."""
    breaks, told = BROKEN[name]
    trainer_checkpoint(tmp_path, 1)
    breaks(trainer_checkpoint(tmp_path, 2))
    found = newest_good(place_of(tmp_path), deadline_s=IN_TIME_S)
    assert found.good == tmp_path / "checkpoint-1"
    assert [one.proof for one in found.passed_over] == [CheckpointProof.BAD]
    assert told in found.passed_over[0].why


def test_ranks_that_are_missing_or_poisoned_are_found(tmp_path):
    """EasyR1's and verl's layout: a rank's file, the optimizer of the last rank, a step that was not finished."""
    for step in (2, 4, 6):
        ranked_checkpoint(tmp_path, step, spoiled=float("nan") if step == 4 else None)
    (tmp_path / "global_step_6/actor/optim_world_size_2_rank_1.pt").unlink()
    unfinished = ranked_checkpoint(tmp_path, 8)
    (tmp_path / "checkpoint_tracker.json").write_text(json.dumps({"last_global_step": 6}))
    found = newest_good(place_of(tmp_path, "global_step_*"), deadline_s=IN_TIME_S)
    assert found.good == tmp_path / "global_step_2"
    assert [one.path.name for one in found.rejected] == [unfinished.name, "global_step_6", "global_step_4"]
    told = [one.why for one in found.rejected]
    assert "step 6 was the last to be finished" in told[0]
    assert "optim_world_size_2_rank_1.pt is missing" in told[1]
    assert "optim_world_size_2_rank_1.pt: NaN or infinity" in told[2]


def test_files_that_were_perhaps_not_asked_for_are_no_proof(tmp_path):
    """``save_model_only``: nobody can say whether the others were meant to be there."""
    ranked_checkpoint(tmp_path, 2, kinds=("model",))
    found = newest_good(place_of(tmp_path, "global_step_*"), deadline_s=IN_TIME_S)
    assert found.good is None
    assert found.rejected == ()
    assert "no optim files" in found.undecided[0].why


def test_later_launches_come_first(tmp_path):
    """ms-swift's ``v1-<time>/checkpoint-3`` was made after ``v0-<time>/checkpoint-9``."""
    trainer_checkpoint(tmp_path / "v0-20260801-101010", 9)
    newest = trainer_checkpoint(tmp_path / "v1-20260801-120000", 3)
    assert newest_good(place_of(tmp_path, "v*/checkpoint-*"), deadline_s=IN_TIME_S).good == newest


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64],
)
@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
def test_each_type_of_numbers_is_looked_at(tmp_path, dtype, ending):
    """A NaN is found in it, and none where there is none."""
    path = tmp_path / f"x{ending}"
    for spoiled in (None, float("nan")):
        made = torch.ones(70)
        if spoiled is not None:
            made[69] = spoiled
        tensors = {"x": made.to(dtype), "n": torch.full((3,), -1)}
        save_file(tensors, path) if ending == ".safetensors" else torch.save(tensors, path)
        bad, unsure = tensor_look.look(path)
        assert unsure == ""
        assert ("NaN" in bad) == (spoiled is not None), bad


def test_only_the_part_of_a_storage_that_a_tensor_takes_counts(tmp_path):
    """What pads a shard may be anything; what a view skips within it is looked at all the same."""
    whole = torch.full((100,), float("nan"))
    whole[10:20] = 1.0
    torch.save(
        {"view": whole[10:20], "turned": whole[10:20].view(2, 5).t(), "empty": whole[:0]}, tmp_path / "x.pt"
    )
    assert tensor_look.look(tmp_path / "x.pt") == ("", "")
    torch.save({"view": whole[10:21]}, tmp_path / "x.pt")
    assert "NaN or infinity in storage 0 [10:21]" in tensor_look.look(tmp_path / "x.pt")[0]


class Armed:
    """Would leave a file behind wherever it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_nothing_that_a_file_names_is_run(tmp_path):
    """A checkpoint with code in it is read around it, and its tensors are looked at."""
    torch.save({"x": torch.ones(3), "trap": Armed(str(tmp_path / "sprung"))}, tmp_path / "x.pt")
    assert tensor_look.look(tmp_path / "x.pt") == ("", "")
    torch.save(
        {"trap": Armed(str(tmp_path / "sprung")), "x": torch.tensor([float("inf")])}, tmp_path / "x.pt"
    )
    assert "infinity" in tensor_look.look(tmp_path / "x.pt")[0]
    assert not (tmp_path / "sprung").exists()
    (tmp_path / "x.pt").write_bytes(pickle.dumps(Armed(str(tmp_path / "sprung"))))
    assert tensor_look.look(tmp_path / "x.pt")[0], "no zip at all"
    pickle.loads((tmp_path / "x.pt").read_bytes())
    assert (tmp_path / "sprung").exists(), "the trap is none"


def test_tensors_of_subclasses_are_looked_at(tmp_path):
    """Parameters with attributes, and the sharded ones that FSDP2 saves."""
    parameter = torch.nn.Parameter(torch.tensor([1.0, float("nan")]))
    parameter.of = "somebody"
    torch.save({"x": parameter}, tmp_path / "x.pt")
    assert "NaN" in tensor_look.look(tmp_path / "x.pt")[0]

    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for value, told in ((1.0, ""), (float("nan"), "NaN")):
            torch.save({"x": distribute_tensor(torch.full((8,), value), mesh, [Shard(0)])}, tmp_path / "x.pt")
            bad, unsure = tensor_look.look(tmp_path / "x.pt")
            assert unsure == ""
            assert bool(bad) == bool(told)
            assert told in bad
    finally:
        dist.destroy_process_group()


def test_old_and_foreign_files_are_undecided(tmp_path):
    """What torch wrote before 1.6, and shards of torch.distributed.checkpoint: nobody is told that they are good."""
    made = trainer_checkpoint(tmp_path, 1)
    torch.save(weights(), made / "optimizer.pt", _use_new_zipfile_serialization=False)
    found = newest_good(place_of(tmp_path), deadline_s=IN_TIME_S)
    assert found.good is None
    assert "since 1.6" in found.undecided[0].why
    made = trainer_checkpoint(tmp_path, 2)
    (made / "pytorch_model_fsdp_0").mkdir()
    (made / "pytorch_model_fsdp_0" / "__0_0.distcp").write_bytes(b"x")
    assert ".metadata" in newest_good(place_of(tmp_path), deadline_s=IN_TIME_S).rejected[0].why
    (made / "pytorch_model_fsdp_0" / ".metadata").write_bytes(b"x")
    assert newest_good(place_of(tmp_path), deadline_s=IN_TIME_S).undecided[0].path == made


def test_deepspeed_needs_each_part_and_what_latest_names(tmp_path):
    """OpenRLHF's layout."""
    made = tmp_path / "_actor"
    step = made / "global_step20"
    step.mkdir(parents=True)
    torch.save({"module": {"w": torch.ones(2)}}, step / "mp_rank_00_model_states.pt")
    for rank in (0, 1):
        torch.save({"fp32": torch.ones(2)}, step / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    place = place_of(tmp_path, "_actor")
    (made / "latest").write_text("global_step20")
    assert newest_good(place, deadline_s=IN_TIME_S).good == made
    (made / "latest").write_text("global_step30")
    assert "global_step30" in newest_good(place, deadline_s=IN_TIME_S).rejected[0].why
    (made / "latest").write_text("global_step20")
    (step / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    assert "zero_pp_rank_0" in newest_good(place, deadline_s=IN_TIME_S).rejected[0].why


def test_the_deadline_is_kept_and_the_rest_is_undecided(tmp_path, monkeypatch):
    """A reader that takes for ever ends with its deadline, and nothing is called good."""
    trainer_checkpoint(tmp_path, 1)
    trainer_checkpoint(tmp_path, 2)
    monkeypatch.setattr(
        checkpoint_look, "_PROGRAM", "this"
    )  # of the standard library: prints, answers nothing
    found = newest_good(place_of(tmp_path), deadline_s=IN_TIME_S)
    assert found.good is None
    assert ["failed" in one.why for one in found.undecided] == [True, True]
    slow = tmp_path / "slow.py"
    slow.write_text("import threading\nthreading.Event().wait(600)\n")
    monkeypatch.setattr(checkpoint_look, "_PROGRAM", "slow")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    began = time.monotonic()
    found = newest_good(place_of(tmp_path), deadline_s=1.0)
    assert time.monotonic() - began < 30
    assert found.good is None
    assert ["in time" in one.why or "no time left" in one.why for one in found.undecided] == [True, True]


def test_no_checkpoints_are_no_error(tmp_path):
    """A folder that is not there yet, and one without any."""
    for folder in (tmp_path, tmp_path / "none"):
        found = newest_good(place_of(folder), deadline_s=IN_TIME_S)
        assert (found.good, found.passed_over) == (None, ())
    for nonsense in (0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="deadline_s"):
            newest_good(place_of(tmp_path), deadline_s=nonsense)


def test_what_a_file_says_of_itself_is_not_believed(tmp_path):
    """A header that lies about its length, and a storage that is shorter than its tensor."""
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    assert tensor_look.look(tmp_path / "x.safetensors")[0]
    torch.save({"x": torch.ones(1000)}, tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "x.pt", "w") as made:
        for name in whole.namelist():
            made.writestr(name, whole.read(name)[: 4 if name.endswith("data/0") else None])
    assert "over the end of storage 0" in tensor_look.look(tmp_path / "x.pt")[0]
