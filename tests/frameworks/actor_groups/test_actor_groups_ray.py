"""Groups of real actors of Ray, made by the interface of OpenRLHF in small, with their ranks killed."""

from __future__ import annotations

import pytest

from tests.frameworks.actor_groups import actor_group_checks as checks
from tests.frameworks.actor_groups import small_launcher

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def test_a_step_under_deaths_is_as_without(ray, tmp_path):
    """Within updates, and between calls."""
    for name in ("bare", "struck"):
        (tmp_path / name).mkdir()
    expected = checks.fault_free(small_launcher, ray, tmp_path / "bare")
    checks.check_steps_under_deaths(small_launcher, ray, tmp_path / "struck", expected)


def test_references_that_were_under_way(ray, tmp_path):
    """Held, dropped, waited for, got twice."""
    checks.check_references_that_were_under_way(small_launcher, ray, tmp_path)


def test_a_group_that_another_process_trains(ray, tmp_path):
    """It recovers there, and is known where it was made."""
    checks.check_a_group_that_another_process_trains(small_launcher, ray, tmp_path)


def test_a_trainer_that_keeps_no_account(ray, tmp_path):
    """A final save does not save a model that was never trained."""
    checks.check_a_trainer_that_keeps_no_account(small_launcher, ray, tmp_path)


def test_where_nothing_is_done(ray, tmp_path):
    """The caller has the error that he would have had."""
    checks.check_where_nothing_is_done(small_launcher, ray, tmp_path)


def test_what_is_not_made_twice(ray, tmp_path):
    """Others wait in it, or files are removed by it."""
    checks.check_what_is_not_made_twice(small_launcher, ray, tmp_path)


def test_a_call_that_always_ends_them(ray, tmp_path):
    """It is not made for ever."""
    checks.check_a_call_that_always_ends_them(small_launcher, ray, tmp_path)


def test_updates_that_are_too_many(ray, tmp_path):
    """Their arguments are counted, and no more is kept than may be."""
    checks.check_updates_that_are_too_many(small_launcher, ray, tmp_path)


def test_a_recovery_is_no_update(ray, tmp_path):
    """The updates' time is theirs alone: a group that was brought back is not given up the sooner for it."""
    checks.check_that_a_recovery_is_no_update(small_launcher, ray, tmp_path)


def test_ranks_that_do_not_come_back(ray, tmp_path):
    """As bare, and said so."""
    checks.check_ranks_that_do_not_come_back(small_launcher, ray, tmp_path)


def test_a_group_that_is_let_go(ray, tmp_path):
    """Nothing of ours holds its ranks."""
    checks.check_a_group_that_is_let_go(small_launcher, ray, tmp_path)


def test_all_else_that_is_asked_for(ray, tmp_path):
    """Values, errors, refusals and time limits."""
    checks.check_all_else_that_is_asked_for(small_launcher, ray, tmp_path)


def test_a_caller_that_waits_for_a_while(ray, tmp_path):
    """He is not held up."""
    checks.check_a_caller_that_waits_for_a_while(small_launcher, ray, tmp_path)
