"""Groups of real actors of Ray, made by the interface of verl in small, with their members killed."""

from __future__ import annotations

import pytest

from tests.frameworks.worker_groups import group_checks as checks
from tests.frameworks.worker_groups import small_verl

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
SMALL = checks.Framework(
    small_verl, small_verl.Worker, small_verl.register, small_verl.Dispatch, {"use_gpu": False}
)


def test_updates_are_made_again(ray, tmp_path):
    """A rank dies within an update."""
    checks.check_updates_are_made_again(SMALL, ray, tmp_path)


def test_a_state_is_kept_in_memory(ray, tmp_path):
    """Rank 0 dies, twice."""
    checks.check_a_snapshot_in_memory(SMALL, ray, tmp_path)


def test_a_users_checkpoint_is_gone_back_to(ray, tmp_path):
    """Also where workers count what they save: nothing of ours is among it."""
    checks.check_a_checkpoint_of_the_users_own(SMALL, ray, tmp_path, counts_what_it_saves=True)


def test_an_engine_is_awake_again(ray, tmp_path):
    """A rank dies while it generates."""
    checks.check_an_engine_is_awake_again(SMALL, ray, tmp_path)


def test_an_error_of_the_workers_own_is_handed_on(ray, tmp_path):
    """Nobody has died."""
    checks.check_an_error_of_the_workers_own(SMALL, ray, tmp_path)


def test_nothing_is_done_for_workers_whose_handles_others_have(ray, tmp_path):
    """The caller has the error that he would have had."""
    checks.check_where_nothing_is_done(SMALL, ray, tmp_path)
