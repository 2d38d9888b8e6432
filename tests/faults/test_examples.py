"""Every signature recognises what it is for, and lets pass what only looks like it."""

from functools import lru_cache

import pytest
from fault_examples import EXAMPLES, near_misses, positives, verdict_on

from rayguard.faults.catalog import Catalog, default_catalog
from rayguard.faults.counsel import NO_FAILURE


def _ids(cases):
    return [f"{case[0]}-{number}" for number, case in enumerate(cases)]


@pytest.mark.parametrize("signature", [s.id for s in default_catalog().signatures])
def test_every_signature_has_an_example_and_a_near_miss(signature):
    """A signature that nothing proves is a guess."""
    assert EXAMPLES.get(signature, {}).get("is"), f"add an example of {signature} to examples/"
    assert EXAMPLES[signature].get("not"), f"add a look-alike of {signature} to examples/"


def test_no_example_is_left_over():
    """An example of a signature that is gone proves nothing."""
    assert set(EXAMPLES) <= {s.id for s in default_catalog().signatures}


@pytest.mark.parametrize(("signature", "example"), positives(), ids=_ids(positives()))
def test_an_example_is_recognised(signature, example):
    """With the cause quoting the fact that decided."""
    found = verdict_on(example)
    assert found.signature == signature
    assert found.confidence > 0
    assert found.evidence
    assert found.evidence[0].split(": ", 1)[-1][-40:] in found.cause


@pytest.mark.parametrize(("alike", "signature", "example"), near_misses(), ids=_ids(near_misses()))
def test_a_look_alike_is_told_apart(alike, signature, example):
    """It is something else, and the test names what."""
    assert signature != alike
    told = verdict_on(example).signature
    assert ("unknown" if told == NO_FAILURE else told) == signature


@pytest.mark.parametrize("example", [example for _, example in positives()], ids=_ids(positives()))
def test_the_decisive_fact_needs_its_signature(example):
    """With the signature taken out of the catalog, the verdict changes: it was this one that decided."""
    verdict = verdict_on(example)
    assert verdict_on(example, _without(verdict.signature)).signature != verdict.signature


@lru_cache(maxsize=2)  # the examples of a signature stand together
def _without(signature):
    return Catalog(tuple(s for s in default_catalog().signatures if s.id != signature))
