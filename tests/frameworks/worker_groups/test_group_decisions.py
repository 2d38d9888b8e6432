"""What a group's workers are told again, and when their state is kept: decisions alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.errors import ConfigError
from rayguard.frameworks.worker_groups import snapshot_pace
from rayguard.frameworks.worker_groups.calls import Effect, method_of, roles_of
from rayguard.frameworks.worker_groups.history import History, MadeCall, loads
from rayguard.frameworks.worker_groups.policy import GroupPolicy
from rayguard.frameworks.worker_groups.snapshot_pace import SnapshotPace, WorkerLook

ROLES = ("actor_rollout_ref", "critic")
LOOK = WorkerLook(node_id="here", parameters=("path", "save_model_only"), parameter_bytes=10)


def made(name, kept="", size_bytes=0):
    return MadeCall(method_of(name, ROLES), kept, size_bytes)


def told(*calls, most_bytes=1_000, history=None):
    history = history or History(most_bytes=most_bytes)
    for call in calls:
        history = history.with_call(call if isinstance(call, MadeCall) else made(call))
    return history


def names(history):
    return [call.method.whole for call in history.calls]


@pytest.mark.parametrize(
    ("whole", "role", "effect"),
    [
        ("actor_rollout_ref_update_actor", "actor_rollout_ref", Effect.UPDATE),
        ("actor_rollout_ref_compute_ref_log_probs", "actor_rollout_ref", Effect.NONE),
        ("critic_save_checkpoint", "critic", Effect.SAVE),
        ("update_actor", "", Effect.UPDATE),
        ("actor_rollout_ref_prepare_rollout_engine", "actor_rollout_ref", Effect.BEGIN),
        ("critic_something_of_a_user", "critic", Effect.UPDATE),
    ],
)
def test_a_method_is_told_by_its_name_behind_its_role(whole, role, effect):
    """Where several roles share a process, each method has its role before its name."""
    found = method_of(whole, ROLES)
    assert (found.role, found.effect, found.whole) == (role, effect, whole)


def test_roles_are_found_by_a_method_that_all_workers_have():
    """The longer of two roles that begin alike is asked first."""
    methods = ["actor_execute_with_func_generator", "actor_ref_execute_with_func_generator", "actor_update"]
    assert roles_of([*methods, "execute_with_func_generator"]) == ("actor_ref", "actor")


def test_what_changes_nothing_is_not_told_again():
    """Sampling and log-probabilities leave no trace."""
    history = told("actor_rollout_ref_generate_sequences", "actor_rollout_ref_compute_log_probs")
    assert not history.calls


def test_updates_are_told_again_in_their_order():
    """Those of both roles, between the calls that set them up."""
    order = ["critic_init_model", "actor_rollout_ref_init_model", "critic_update_critic"]
    order += ["actor_rollout_ref_update_actor"] * 3
    assert names(told(*order)) == order


def test_a_whole_state_takes_the_place_of_the_updates_of_its_role_alone():
    """The critic's updates stay; the set-up stays."""
    history = told(
        "critic_init_model",
        "actor_rollout_ref_init_model",
        "actor_rollout_ref_load_checkpoint",
        "critic_update_critic",
        "actor_rollout_ref_update_actor",
    )
    history = history.with_state(made("actor_rollout_ref_load_checkpoint", "/new"))
    assert names(history) == [
        "critic_init_model",
        "actor_rollout_ref_init_model",
        "critic_update_critic",
        "actor_rollout_ref_load_checkpoint",
    ]
    assert history.calls[-1].kept == "/new"


def test_an_engine_that_was_awake_is_woken_after_the_state_is_loaded():
    """It takes its weights from the model as it wakes up."""
    history = told("actor_rollout_ref_init_model", "actor_rollout_ref_prepare_rollout_engine")
    history = history.with_state(made("actor_rollout_ref_load_checkpoint"))
    assert names(history)[-2:] == [
        "actor_rollout_ref_load_checkpoint",
        "actor_rollout_ref_prepare_rollout_engine",
    ]
    assert names(told("actor_rollout_ref_release_rollout_engine", history=history))[-1].endswith(
        "load_checkpoint"
    )


def test_a_setting_said_again_is_told_once_and_the_last_one_holds():
    """A model that is moved to and fro at each step makes no endless story."""
    moves = [made("critic_to", where) for where in ("cpu", "cuda", "cpu", "cuda")]
    history = told("critic_init_model", *moves)
    assert [call.kept for call in history.calls] == ["", "cpu", "cuda"]
    after = told("critic_update_critic", made("critic_to", "cuda"), history=history)
    assert [call.method.name for call in after.calls] == ["init_model", "to", "to", "update_critic", "to"]


def test_updates_beyond_the_bound_are_let_go_and_a_new_state_settles_it():
    """Memory is bounded; what cannot be made again is said."""
    updates = [made("critic_update_critic", size_bytes=400)] * 3
    history = told(*updates)
    assert "GiB" in history.doubt
    assert history.kept_bytes == 0
    assert not told(*updates, history=history).calls, "of a role in doubt no update is kept"
    assert history.with_state(made("actor_rollout_ref_load_checkpoint")).doubt == history.doubt
    settled = history.with_state(made("critic_load_checkpoint"))
    assert settled.doubt == ""
    assert names(told("critic_update_critic", history=settled))[-1] == "critic_update_critic"


@given(
    st.lists(st.sampled_from(["critic_update_critic", "critic_init_model", "state", "doubt"]), max_size=30)
)
def test_the_story_is_bounded_and_of_a_role_in_doubt_no_update_is_kept(steps):
    """Whatever happens, in whatever order."""
    history = History(most_bytes=50)
    for step in steps:
        if step == "state":
            history = history.with_state(made("critic_load_checkpoint"))
        elif step == "doubt":
            history = history.with_doubt("critic", "it raised")
        else:
            history = history.with_call(made(step, size_bytes=20 if "update" in step else 0))
        updates = [call for call in history.calls if call.method.effect is Effect.UPDATE]
        assert history.kept_bytes <= 50
        assert not (updates and history.doubt)
        assert sum(call.method.effect is Effect.LOAD for call in history.calls) <= 1


def test_what_loads_is_found_from_what_saves():
    """Of the same role, and waited for."""
    save = replace(method_of("critic_save_checkpoint", ROLES), blocking=False)
    assert loads(save) == method_of("critic_load_checkpoint", ROLES)


def test_snapshots_take_no_more_than_their_share_of_the_time():
    """A second of saving is followed by 99 without; a ratio of 0 means none."""
    pace = SnapshotPace(ratio=0.01)
    assert pace.is_due(5.0)
    pace = pace.after(1.0, 10.0)
    assert not pace.is_due(109.0)
    assert pace.is_due(110.0)
    assert not SnapshotPace(ratio=0.0).is_due(5.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"node_id": "there"}, "node"),
        ({"parameters": ("local_path", "hdfs_path", "global_step", "max_ckpt_to_keep")}, "remove old"),
        ({"parameters": ("where",)}, "not one that is known"),
    ],
)
def test_workers_whose_state_cannot_be_kept_in_memory_say_why(change, said):
    """One such worker is enough."""
    assert snapshot_pace.why_no_snapshots([LOOK, LOOK], "here") == ""
    assert said in snapshot_pace.why_no_snapshots([LOOK, replace(LOOK, **change)], "here")


def test_a_checkpoint_that_brings_back_less_than_all_is_no_state():
    """Where a framework lets its user choose what is loaded."""
    all_parts = replace(LOOK, loads=("model", "optimizer", "extra"))
    assert snapshot_pace.loads_all([LOOK, all_parts])
    assert not snapshot_pace.loads_all([all_parts, replace(LOOK, loads=("model",))])


def test_a_snapshot_is_made_only_where_memory_is_plenty():
    """Its file and what it is written from, within the share."""
    assert snapshot_pace.fits(100, 800, 0.25)
    assert not snapshot_pace.fits(101, 800, 0.25)
    assert snapshot_pace.largest([LOOK, LOOK]) == 80
    assert len(snapshot_pace.files_of(2)) == 6


@pytest.mark.parametrize(
    "wrong", [{"restarts": 3}, {"repeats": -1}, {"repeats": True}, {"snapshot_ratio": 2}, {"end_s": 0}]
)
def test_a_policy_that_means_nothing_is_refused(wrong):
    """At once, with its name."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        GroupPolicy(**wrong)
