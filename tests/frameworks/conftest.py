"""A real Ray for the groups that frameworks made."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    """A cluster whose workers write to a journal of their own."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAYGUARD_HOME", str(tmp_path_factory.mktemp("home")))
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        try:
            yield ray
        finally:
            ray.shutdown()
