"""A loop is the same end again and again, too fast."""

import pytest

from rayguard.cluster.crash_loop import CrashLoopPolicy, Restart, is_loop, with_one_more, words
from rayguard.errors import ConfigError

POLICY = CrashLoopPolicy(restarts=3, within_s=60.0)


def lives(*ends):
    kept = ()
    for at, exit_type in ends:
        kept = with_one_more(kept, Restart(at, exit_type), POLICY)
    return kept


@pytest.mark.parametrize(
    ("ends", "loop"),
    [
        ([(0, "OOM"), (1, "OOM")], False),
        ([(0, "OOM"), (1, "OOM"), (2, "OOM")], True),
        ([(0, "OOM"), (1, "SYSTEM_ERROR"), (2, "OOM")], False),
        ([(0, "OOM"), (50, "OOM"), (70, "OOM")], False),
        ([(0, "X"), (50, "OOM"), (70, "OOM"), (80, "OOM")], True),
        ([(0, ""), (1, ""), (2, "")], True),
        ([(0, "OOM"), (1, ""), (2, "OOM")], True),
    ],
)
def test_a_loop_is_many_ends_alike_within_the_window(ends, loop):
    """Not a few, not different ones, not slow ones; also when nobody knows how they ended."""
    assert is_loop(lives(*ends), POLICY) is loop


def test_no_more_is_kept_than_is_asked_for():
    """An actor that restarts for a week costs as much as one that did so thrice."""
    assert len(lives(*((n / 10, "OOM") for n in range(1_000)))) == POLICY.restarts


def test_words_prefer_what_an_incident_found():
    """Ray's guesses are left out."""
    assert (
        words("SYSTEM_ERROR", "end of file Some common causes include: (1) ...", "")
        == "SYSTEM_ERROR: end of file"
    )
    assert words("SYSTEM_ERROR", "x", "Hog.items grew to 8 GB") == "Hog.items grew to 8 GB"
    assert words("", "", "") == "nobody knows how its process ended"


@pytest.mark.parametrize("wrong", [{"restarts": 1}, {"within_s": 0.0}])
def test_a_policy_without_meaning_is_refused(wrong):
    """With the key that is wrong."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        CrashLoopPolicy(**wrong)
