"""What a gang is compared with: the whole job begun again from a checkpoint, without rayguard.

``python -m tests.benchmarks.trials_gang.whole_job STRATEGY CHECKPOINT STEP`` is that job: a driver, a Ray, an
actor for each rank, torch, the model, the checkpoint, one step. It prints the bits of the losses. The
checkpoint lies in the page cache, and nobody has to notice anything first: both are in its favour.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 900.0


def whole_job(strategy: str, checkpoint: Path, step: int) -> tuple[float, list[list[str]]]:
    """Run that job; return the seconds until its step was made, and the bits of the losses.

    Raises:
        RuntimeError: It did not come to that.
    """
    began = time.monotonic()
    command = [sys.executable, "-m", __spec__.name, strategy, str(checkpoint), str(step)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        try:
            line = next((one for one in job.stdout or () if one.startswith("[[")), "")
            took = time.monotonic() - began
            job.wait(LIMIT_S)
        finally:
            job.kill()
    if not line:
        raise RuntimeError(f"the whole job ended with {job.returncode}, and made no step")
    return took, json.loads(line)


class JobRank:
    """A rank as an ordinary actor."""

    def __init__(self, rank: int, size: int, meeting: str) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
        self.rank, self.size = rank, size

    def resume(self, strategy: str, checkpoint: str, step: int) -> tuple[str, str]:
        """Build, load, and make a step."""
        from torch.distributed.device_mesh import init_device_mesh

        from tests.benchmarks.trials_gang.training import Training

        training = Training()
        training.build(self.rank, strategy, init_device_mesh("cpu", (self.size,)))
        training.read(f"{checkpoint}/{self.rank}.pt")
        return training.train(step)


def main(strategy: str, checkpoint: str, step: int) -> None:
    """Run the job."""
    import ray

    from tests.benchmarks.trials_gang.plan import RANKS

    repository = str(Path(__file__).resolve().parents[3])
    ray.init(
        address="local",
        num_cpus=RANKS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": repository}},
    )
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"{folder}/meeting"
        ranks = [ray.remote(JobRank).remote(rank, RANKS, meeting) for rank in range(RANKS)]
        bits = ray.get([rank.resume.remote(strategy, checkpoint, step) for rank in ranks])
        print(json.dumps(bits), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
