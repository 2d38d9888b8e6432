"""The second opinion by words: asked only where no signature is sure, and it says what it goes by."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayguard.faults.catalog import default_catalog
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.faults.witness import Source, Witness
from rayguard.logs.likeness import MAX_CHARS, Likeness, WordWeights, likeness, words_of
from rayguard.logs.report import ALIKE_CONFIDENCE, diagnose_text
from tests.faults.fault_examples import SIGNATURES, near_misses, positives

# No signature knows them, and nobody printed them yet.
STALE = "RuntimeError: the dataset shard on the network file system could not be read: stale handle"
BLOCKS = (
    "RuntimeError: scheduler: block table and free blocks disagree after preemption of the sequence group"
)
FEW_WORDS = Likeness(
    {Kind.DISK_FULL: 0.0, Kind.HOST_OOM: 0.0, Kind.UNKNOWN: 0.0},
    {
        "volume full": WordWeights(9, ((Kind.DISK_FULL, 8.0), (Kind.UNKNOWN, -1.0))),
        "volume": WordWeights(9, ((Kind.DISK_FULL, 4.0), (Kind.HOST_OOM, 1.0))),
        "type:OSError": WordWeights(9, ((Kind.DISK_FULL, 1.0),)),
        "memory": WordWeights(9, ((Kind.HOST_OOM, 9.0), (Kind.DISK_FULL, -9.0))),
    },
)


def fact(text="the volume full of data", names=(), **more):
    """One printed fact."""
    return Witness(source=Source.LOG, quote=text, text=text, names=frozenset(names), **more)


@pytest.mark.parametrize(
    ("line", "kind", "scope", "again"),
    [(STALE, Kind.STORAGE_IO, Scope.JOB, True), (BLOCKS, Kind.SCHEDULER_ASSERTION, Scope.ENGINE, True)],
)
def test_a_failure_without_a_signature_is_told_by_its_words(line, kind, scope, again):
    """With what is done about its kind, the line that it goes by, and no more confidence than it has."""
    text = f"step 7 done\n{line}\nbye"
    assert diagnose_text(text, SIGNATURES).diagnosis.kind is Kind.UNKNOWN
    found = diagnose_text(text)
    assert (found.diagnosis.kind, found.diagnosis.scope) == (kind, scope)
    assert found.diagnosis.signature == f"likeness.{kind.value}"
    assert found.diagnosis.confidence <= ALIKE_CONFIDENCE
    assert found.diagnosis.retry_same_settings is again
    assert [(one.quote, one.line) for one in found.evidence] == [(line, 2)]
    assert found.diagnosis.cause.endswith(f", to judge by the words: {line}")


def test_a_users_signature_is_not_doubted():
    """Nor is anything where a user has spoken at all."""
    mine = default_catalog().with_signatures(
        SIGNATURES.from_yaml(
            "signatures: [{id: mine.storage, kind: user_code, scope: code, cause: our own storage is slow, "
            "advice: ask the team, confidence: 0.51, when: {text: the dataset shard on}}]"
        ).signatures
    )
    assert diagnose_text(STALE, mine).diagnosis.signature == "mine.storage"


@pytest.mark.parametrize(
    "text",
    [
        "MyOddError: out of juice",
        "RuntimeError: x",
        "If you run into `CUDA out of memory`, lower gpu_memory_utilization",
        "step 3 done, 0 errors, 0 failures",
    ],
)
def test_few_words_are_no_evidence(text):
    """The answer is that nothing is known."""
    assert diagnose_text(text).diagnosis.kind is Kind.UNKNOWN


def test_the_examples_of_the_catalog_keep_their_kinds():
    """What signatures say of their own examples is overruled once in 300 times at most."""
    texts = [
        one["text"]
        for one in (*(e for _, e in positives()), *(e for _, _, e in near_misses()))
        if "text" in one
    ]
    overruled = [
        t for t in texts if diagnose_text(t, SIGNATURES).diagnosis.kind is not diagnose_text(t).diagnosis.kind
    ]
    assert len(texts) > 1_500
    assert len(overruled) <= len(texts) / 300, overruled


def test_what_ships_is_whole():
    """Every kind has a bias, every weight a kind, and what is written is what was read."""
    shipped = likeness()
    assert set(shipped.bias) == set(Kind)
    assert len(shipped.words) > 5_000
    assert Likeness.from_text(shipped.text()) == shipped


def test_another_kind_must_be_far_likelier():
    """The surer a signature is, the more so."""
    seen = [fact(names=["OSError"])]
    assert FEW_WORDS.second_opinion(seen, Kind.HOST_OOM, 0.5) is Kind.DISK_FULL
    assert FEW_WORDS.second_opinion(seen, Kind.HOST_OOM, 0.999) is Kind.HOST_OOM
    assert FEW_WORDS.second_opinion(seen, Kind.HOST_OOM, 1.0) is Kind.HOST_OOM
    assert FEW_WORDS.second_opinion(seen, Kind.UNKNOWN, 0.0) is Kind.DISK_FULL


def test_warnings_alone_are_no_failure():
    """Where nothing is known, a line that was printed as a warning is not made one by its words."""
    assert FEW_WORDS.second_opinion([fact(mild=True)], Kind.UNKNOWN, 0.0) is Kind.UNKNOWN
    assert FEW_WORDS.second_opinion([], Kind.UNKNOWN, 0.0) is Kind.UNKNOWN
    assert FEW_WORDS.second_opinion([fact("nothing it knows")], Kind.UNKNOWN, 0.0) is Kind.UNKNOWN


def test_the_facts_that_say_most_come_first():
    """Those that speak against it are not among them."""
    seen = [fact("memory"), fact("the volume"), fact("volume full")]
    assert [one.text for one in FEW_WORDS.speaking_for(seen, Kind.DISK_FULL)] == ["volume full", "the volume"]


def test_words_are_bounded():
    """However much is printed."""
    words = words_of([fact("word" * 3_000_000), *(fact(f"a{n} " * 5_000) for n in range(500))])
    assert sum(map(len, words)) < 10 * MAX_CHARS


@settings(max_examples=100)
@given(st.lists(st.text(max_size=60), max_size=8), st.floats(0, 1))
def test_any_words_are_answered(texts, confidence):
    """Chances are chances, and an opinion is a kind."""
    seen = [fact(text) for text in texts]
    chances = likeness().chances(words_of(seen))
    assert not chances or abs(sum(chances.values()) - 1) < 1e-6
    assert likeness().second_opinion(seen, Kind.USER_CODE, confidence) in Kind
