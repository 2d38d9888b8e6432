"""A real Ray for the tests of trainers."""

import pytest

from tests.worker_start import FORKED


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    """A cluster whose workers write to a journal of their own."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAYGUARD_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv(FORKED, "torch,torch._dynamo,torch.distributed.fsdp,rayguard.trainers.gang.rank_host")
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        try:
            yield ray
        finally:
            ray.shutdown()
