"""The ledger: what it holds, and what is due."""

from hypothesis import given
from hypothesis import strategies as st

from rayguard.objects.ledger import Ledger, task_key


def step(ledger, number, made, *, lane="main", keep_steps=1):
    """Run a scope that makes ``made``: (object id, line)."""
    opened = ledger.open(number, number, lane, keep_steps)
    for object_id, site in made:
        ledger.made(object_id, site, number, opened=opened)
    ledger.end(opened)
    return opened


def due(ledger, lanes=("main",)):
    return [lease.object_id for lease in ledger.due(lanes)]


def test_what_one_line_leaves_in_each_step_is_due_but_for_the_newest():
    """The pattern of a leak."""
    ledger = Ledger()
    for number in range(1, 5):
        step(ledger, number, [(f"o{number}", "line")])
    assert due(ledger) == ["o1", "o2", "o3"]


def test_keep_steps_zero_ends_everything_at_once():
    """The strict reading of a scope."""
    ledger = Ledger()
    step(ledger, 1, [("a", "x"), ("b", "y")], keep_steps=0)
    assert due(ledger) == ["a", "b"]


def test_what_a_line_made_once_is_never_due():
    """A cache that was filled in the first step is no leak."""
    ledger = Ledger()
    step(ledger, 1, [("cache", "once")])
    for number in range(2, 9):
        step(ledger, number, [(f"o{number}", "other line")])
    assert "cache" not in due(ledger)


def test_a_slow_thread_keeps_its_newest_however_many_steps_others_took():
    """Scopes of another living lane say nothing about this one."""
    ledger = Ledger()
    step(ledger, 1, [("slow", "line")], lane="slow")
    for number in range(2, 6):
        step(ledger, number, [(f"o{number}", "line")], lane="fast")
    assert "slow" not in due(ledger, ["slow", "fast"])
    assert "slow" in due(ledger, ["fast"]), "its lane is gone: nobody will open another scope there"


def test_scopes_side_by_side_do_not_end_each_other():
    """Newer is only what was opened after the other had ended."""
    ledger = Ledger()
    one = ledger.open(1, 1, "main", 1)
    two = ledger.open(2, 1, "main", 1)
    ledger.made("a", "line", 1, opened=one)
    ledger.made("b", "line", 1, opened=two)
    ledger.end(one)
    ledger.end(two)
    assert due(ledger) == []


def test_what_is_kept_is_never_due_and_what_is_handed_over_ends_with_its_heir():
    """``keep`` and the return value of a scoped function."""
    ledger = Ledger()
    outer = ledger.open(10, 0, "main", 0)
    inner = ledger.open(11, 0, "main", 0)
    for object_id in ("kept", "handed", "left"):
        ledger.made(object_id, object_id, 0, opened=inner)
    ledger.keep(["kept"])
    ledger.keep(["handed", "unknown"], outer)
    ledger.end(inner)
    assert due(ledger) == ["left"]
    ledger.end(outer)
    assert due(ledger) == ["handed", "left"]


def test_what_is_gone_is_forgotten_and_what_was_made_meanwhile_is_not():
    """Counts taken before an object was entered say nothing about it."""
    ledger = Ledger()
    ledger.made("old", "line", 0, opened=None)
    asked_at = ledger.now
    ledger.made("new", "line", 0, opened=None)
    ledger.refresh({}, asked_at=asked_at, step=0)
    assert ledger.get("old") is None
    assert ledger.get("new") is not None


def test_unseen_objects_are_entered_where_asked_for():
    """A pass over all references knows those that nobody saw being made."""
    ledger = Ledger()
    counts = {"a": (1, 0), "b": (2, 1)}
    ledger.refresh(counts, asked_at=0, step=7)
    assert len(ledger) == 0
    ledger.refresh(counts, asked_at=0, step=7, adopt=lambda one: one == "b")
    (lease,) = ledger
    assert (lease.object_id, lease.step, lease.local, lease.submitted) == ("b", 7, 2, 1)


def test_what_a_call_made_is_claimed_by_the_scope_that_made_the_call():
    """By the key of the task, be it in the object's own id or noted at its making."""
    ledger = Ledger()
    call = "16310a0f0a45af5c3f629c8507051b6006f1312b01000000"
    put_there = "00310a0f0a45af5c3f629c8507051b6006f1312b0100000002e1f505"
    assert task_key(call) == task_key(put_there)
    ledger.made(put_there, "", 0, opened=None)
    ledger.made("by an async method", "", 0, opened=None, task=task_key(call))
    ledger.made("by another call", "", 0, opened=None, task="another")
    ledger.claim(opened := ledger.open(1, 3, "driver", 0), {task_key(call): "train.py:7"})
    ledger.end(opened)
    assert due(ledger) == [put_there, "by an async method"]
    assert ledger.get(put_there).site == "what was called at train.py:7"


def test_a_kept_object_is_claimed_by_no_announcement():
    """The user decided."""
    ledger = Ledger()
    ledger.made("kept", "line", 0, opened=None, task="call")
    ledger.keep(["kept"])
    ledger.claim(ledger.open(1, 0, "driver", 0), {"call": "line"})
    assert ledger.get("kept").scope == 0


actions = st.lists(
    st.tuples(
        st.sampled_from(["put", "drop", "end", "keep"]),
        st.integers(0, 5),
        st.sampled_from("xyz"),
        st.integers(0, 2),
    ),
    max_size=60,
)


@given(actions)
def test_only_what_a_scope_made_that_ended_is_ever_due(todo):
    """And never what was dropped or kept, whatever the order of things."""
    ledger = Ledger()
    opened = ledger.open(1, 0, "main", 0)
    alive, ended, kept, made_in = {}, set(), set(), {}
    for number, (what, which, site, keep_steps) in enumerate(todo):
        if what == "put":
            name = f"{number}"
            ledger.made(name, site, number, opened=opened)
            alive[name], made_in[name] = (1, 0), opened.scope
        elif what == "end":
            ledger.end(opened)
            ended.add(opened.scope)
            opened = ledger.open(number + 2, number, "main", keep_steps)
        elif alive:
            name = sorted(alive)[which % len(alive)]
            if what == "drop":
                del alive[name]
            else:
                kept.add(name)
                ledger.keep([name])
        ledger.refresh(alive, asked_at=ledger.now, step=number)
    found = set(due(ledger))
    assert found <= {name for name in alive if made_in[name] in ended and name not in kept}
