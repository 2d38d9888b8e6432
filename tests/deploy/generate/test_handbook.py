"""The handbook is the catalog, in words."""

from pathlib import Path

import pytest

from deploy.generate.handbook import handbook, symptoms
from rayguard.faults.catalog import Catalog, default_catalog
from rayguard.faults.diagnosis import Kind
from rayguard.faults.kinds import kinds

PAGE = Path(__file__).parents[3] / "docs" / "why-did-my-actor-die.md"
ONE = """
signatures:
  - id: mine.licence
    kind: user_code
    scope: code
    cause: the simulator lost its licence
    advice: renew its licence
    confidence: 0.9
    retry_same_settings: false
    when: [{types: LicenceError}, {text: seat is taken}]
    links: https://example.org/threads/1
"""


def test_the_page_in_the_docs_is_that_of_the_catalog():
    """`make docs` was run after the last change of a signature."""
    assert PAGE.read_text(encoding="utf-8") == handbook(default_catalog())


def test_every_kind_is_explained():
    """No kind is a bare word."""
    assert set(kinds()) == set(Kind)


@pytest.mark.parametrize(
    "words", ["seat is taken", "LicenceError", "The simulator lost its licence.", "Renew its licence."]
)
def test_a_signature_tells_symptom_cause_and_cure(words):
    """And the thread that it comes from, and whether to try again."""
    page = handbook(Catalog.from_yaml(ONE))
    assert words in page
    assert "The same settings fail again." in page
    assert "<https://example.org/threads/1>" in page


def test_every_signature_has_something_to_search_for():
    """But for those that judge a process, a silence or a place alone."""
    silent = [s.id for s in default_catalog().signatures if not symptoms(s) and s.tier.name == "CAUSE"]
    assert silent == []
