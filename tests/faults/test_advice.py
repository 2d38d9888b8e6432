"""The advice is for the cause below the verdict: on neighbours of reported failures, and on texts that are well.

``advice/`` holds texts of our own, a file for each group: which kinds are right, which words the advice must
have (``says``) and which it must not have (``never``).
"""

from pathlib import Path

import pytest
import yaml

from rayguard.faults.catalog import Catalog, default_catalog
from rayguard.faults.counsel import NO_FAILURE, counsels
from rayguard.faults.diagnose import diagnose
from rayguard.faults.diagnosis import Kind
from rayguard.faults.fault import ExceptionFact, Fault
from rayguard.logs.report import diagnose_text

TEXTS = Path(__file__).parent / "advice"
NEIGHBOURS = [
    pytest.param(one, id=f"{file.stem}: {one['name']}")
    for file in sorted(TEXTS.glob("*.yaml"))
    if file.stem != "healthy"
    for one in yaml.safe_load(file.read_text(encoding="utf-8"))
]
HEALTHY = yaml.safe_load((TEXTS / "healthy.yaml").read_text(encoding="utf-8"))
TAKEN = "ValueError: Free memory on device (3.9/79.2 GiB) on startup is less than desired GPU memory utilization (0.9, 71 GiB)."
PUSHED = "RuntimeError: start_weight_update must be called before update_weights"


@pytest.mark.parametrize("one", NEIGHBOURS)
def test_the_advice_is_for_the_cause(one):
    """Not for others that end in the same verdict."""
    found = diagnose_text(one["text"]).diagnosis
    assert found.kind.value in one["kind"]
    assert [words for words in one["says"] if words not in found.advice] == []
    assert [words for words in one.get("never", ()) if words in found.advice] == []


@pytest.mark.parametrize("text", [pytest.param(text, id=text[:50]) for text in HEALTHY])
def test_in_a_text_that_is_well_no_failure_is_seen(text):
    """Whatever it warns of."""
    assert diagnose_text(text).diagnosis.signature == NO_FAILURE


def test_a_rule_is_for_verdicts_that_there_are():
    """A rule for a signature that is gone never speaks."""
    known = {signature.id for signature in default_catalog().signatures} | {kind.value for kind in Kind}
    known.add(NO_FAILURE)
    for rule in counsels().rules:
        for name in rule.of:
            assert name in known or (name.endswith(".") and any(one.startswith(name) for one in known)), (
                rule.id
            )
    assert len({rule.id for rule in counsels().rules}) == len(counsels().rules)


def test_the_advice_speaks_the_language_of_the_texts_framework():
    """A setting has the name that it has there."""
    verl = "(WorkerDict pid=1) verl/workers/rollout: colocate, param_offload\n"
    plain, theirs = (diagnose_text(before + TAKEN).diagnosis.advice for before in ("", verl))
    assert "actor_rollout_ref" not in plain
    assert "actor_rollout_ref.rollout.gpu_memory_utilization" in theirs
    assert not any("{" in diagnose_text(text).diagnosis.advice for text in (TAKEN, verl + TAKEN))


def test_a_users_signature_keeps_its_advice():
    """Rules are for ours."""
    mine = Catalog.from_yaml(
        "signatures: [{id: mine.push, kind: weight_sync_failed, scope: engine, cause: the push went wrong,"
        " advice: call the push team, confidence: 0.9, when: {text: start_weight_update must be called}}]"
    )
    catalog = default_catalog().with_signatures(mine.signatures)
    assert diagnose_text(PUSHED, catalog).diagnosis.advice == "call the push team"


def test_the_guards_own_diagnosis_has_the_same_advice():
    """From facts in place of lines."""
    kind, _, message = PUSHED.partition(": ")
    fact = ExceptionFact(type_name=kind, message=message)
    assert diagnose(Fault(exceptions=(fact,))).advice == diagnose_text(PUSHED).diagnosis.advice
