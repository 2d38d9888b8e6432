"""The catalog as data: complete, consistent, linear, and clear about its mistakes."""

import pickle
from importlib import resources

import pytest
import yaml

import rayguard.errors
from rayguard.errors import ConfigError
from rayguard.faults.catalog import SUBJECTS, Catalog, _signatures, default_catalog
from rayguard.faults.counsel import Counsel
from rayguard.faults.diagnose import diagnose
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.faults.expression import Expression
from rayguard.faults.fault import ExceptionFact, Fault
from rayguard.faults.signature import Tier
from rayguard.recovery.ladder import Ladder

SCOPES = {
    Scope.ENGINE: "scheduler_assertion engine_internal_error engine_dead engine_init_failed engine_hang"
    " kv_cache_too_small weight_sync_failed",
    Scope.PROCESS: "cuda_device_assert cuda_illegal_access host_oom actor_died actor_unavailable",
    Scope.NODE: "gpu_hardware node_died preempted shm_exhausted disk_full os_limit",
    Scope.GROUP: "nccl_timeout nccl_error gloo_error",
    Scope.REQUEST: "request_invalid",
    Scope.JOB: "batch_indivisible launcher_misconfig config_invalid dependency_mismatch runtime_env_failed",
    Scope.CODE: "user_code",
}
EXCEPTIONS = {"rayguard.gave_up": Scope.JOB, "rayguard.recovery_timeout": Scope.PROCESS}
GOOD = """
signatures:
  - id: mine.simulator
    kind: user_code
    scope: process
    cause: the simulator lost its licence
    advice: renew the licence of the simulator
    confidence: 0.9
    when: {types: LicenceError, text: seat}
"""


def _fault(type_name, message):
    return Fault(exceptions=(ExceptionFact(type_name=type_name, message=message),))


def test_every_kind_has_a_signature():
    """A kind that cannot be reached is a promise not kept; unknown is what is left over."""
    assert {s.kind for s in default_catalog().signatures} == set(Kind) - {Kind.UNKNOWN}


@pytest.mark.parametrize("scope", SCOPES)
def test_a_kind_has_the_scope_that_says_what_must_be_restarted(scope):
    """The scope decides what is restarted; the table is the contract with the policy."""
    for signature in default_catalog().signatures:
        if signature.kind.value in SCOPES[scope].split():
            assert signature.scope is EXCEPTIONS.get(signature.id, scope), signature.id


def test_cures_are_rungs_of_the_ladder():
    """A cure is the name of a safe setting, and no other name exists."""
    named = {cure for s in default_catalog().signatures for cure in s.cures}
    assert named <= set(Ladder().rungs)
    for rung in Ladder().rungs:
        Catalog.from_yaml(GOOD + f"    cures: {rung}\n")


def test_errors_of_ours_that_the_catalog_names_exist():
    """A renamed error would silently become unknown."""
    named = {n for s in default_catalog().signatures for when in s.when for n in when.types}
    for name in named:
        if name.startswith("rayguard.errors."):
            assert hasattr(rayguard.errors, name.rpartition(".")[2]), name


def test_a_poisoned_process_is_never_asked_to_try_again_in_itself():
    """A poisoned CUDA context needs a scope of at least a process."""
    for signature in default_catalog().signatures:
        if signature.poisoned:
            assert signature.scope in {Scope.PROCESS, Scope.GROUP, Scope.NODE}, signature.id


NO_BLIND_RESTART = [
    "config_invalid",
    "batch_indivisible",
    "user_code",
    "dependency_mismatch",
    "launcher_misconfig",
]
RESTART_HELPS = [
    "engine_dead",
    "engine_hang",
    "actor_died",
    "actor_unavailable",
    "object_lost",
    "get_timeout",
    "nccl_timeout",
    "node_died",
    "preempted",
    "gcs_unavailable",
    "port_conflict",
]


def test_nothing_is_restarted_blindly_and_nothing_stops_that_a_restart_would_cure():
    """What is wrong in settings or code stays wrong; what died of something else may live the next time."""
    for signature in default_catalog().signatures:
        if signature.kind.value in NO_BLIND_RESTART:
            assert not signature.retry_same_settings, signature.id
        if signature.kind.value in RESTART_HELPS and signature.id not in EXCEPTIONS:
            assert signature.retry_same_settings, signature.id


def test_only_what_names_a_cause_is_nearly_certain():
    """A confidence above 0.9 is for words that mean one thing."""
    sure = [s for s in default_catalog().signatures if s.confidence > 0.9]
    assert all(signature.tier is Tier.CAUSE for signature in sure)


def test_the_catalog_can_be_sent_to_another_process():
    """Actors get it pickled."""
    catalog = default_catalog()
    assert pickle.loads(pickle.dumps(catalog)) == catalog


def test_the_catalog_is_read_once():
    """The second call costs nothing."""
    assert default_catalog() is default_catalog()


def test_a_users_signature_goes_first(tmp_path):
    """It is asked before ours, also where ours would fit."""
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    catalog = default_catalog().with_user(path)
    assert len(catalog.signatures) == len(default_catalog().signatures) + 1
    fault = _fault("sim.LicenceError", "no seat: Address already in use")
    assert diagnose(fault).signature == "os.port_in_use"
    assert diagnose(fault, catalog).signature == "mine.simulator"


def test_a_user_can_redefine_a_signature(tmp_path):
    """The same id replaces ours instead of standing beside it."""
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace("mine.simulator", "os.port_in_use"))
    catalog = default_catalog().with_user(path)
    assert [s.id for s in catalog.signatures].count("os.port_in_use") == 1
    assert diagnose(_fault("OSError", "Address already in use"), catalog).signature == "unknown"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("kind: user_code", "kind: user_cod", "mine.simulator.*key `kind`"),
        ("scope: process", "scope: planet", "mine.simulator.*key `scope`"),
        ("confidence: 0.9", "confidence: 2", "mine.simulator.*key `confidence`"),
        ("confidence: 0.9", "confident: 0.9", "mine.simulator.*key `confident`"),
        ("text: seat}", "texts: seat}", r"mine.simulator.*key `when\.0\.texts`"),
        ("text: seat}", "text: s}", r"mine.simulator.*key `when\.0\.text\.0`"),
        ("text: seat}", "text: seat, message: '(a'}", r"mine.simulator.*key `when\.0\.message\.0`.*'\(a'"),
        ("text: seat}", "text: seat, message: '(a+)+b'}", "not bounded"),
        ("text: seat}", "text: seat, message: 'a.*b'}", "not bounded"),
        ("text: seat}", "text: seat, message: 'a{3,}b'}", "without an upper bound"),
        ("text: seat}", "text: seat, message: '(a{1,9}){1,9}b'}", "repeated group"),
        ("text: seat}", "text: seat, message: 'a.{0,200}b.{0,200}c'}", "40000 tries"),
        ("{types: LicenceError, text: seat}", "{message: seat}", "needs `types` or `text`"),
        ("{types: LicenceError, text: seat}", "{}", "matches everything"),
        ("{types: LicenceError, text: seat}", "{exit: SIGWHAT}", "SIGWHAT"),
        ("{types: LicenceError, text: seat}", "[]", "key `when`"),
        ("id: mine.simulator", "id: Mine", "key `id`"),
        ("    cause: the simulator lost its licence\n", "", "key `cause`"),
        ("    confidence", "    cures: reboot\n    confidence", r"key `cures\.0`"),
        ("    confidence", "    deterministic: true\n    confidence", "contradicts"),
        ("signatures:", "signature:", "list under the key `signatures`"),
        ("signatures:", "signatures: [", "no YAML"),
    ],
)
def test_a_mistake_is_reported_with_its_place(tmp_path, old, new, expected):
    """The file, the signature and the key: enough to correct it without reading our code."""
    assert old in GOOD
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=expected) as caught:
        default_catalog().with_user(path)
    assert "mine.yaml" in str(caught.value)


def test_ids_are_unique():
    """The second would never be asked, and nobody would notice."""
    with pytest.raises(ConfigError, match="twice"):
        Catalog.from_yaml(GOOD + GOOD.partition("signatures:\n")[2])


def test_a_missing_file_is_a_config_error(tmp_path):
    """Not an OSError from the depth of a recovery."""
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        default_catalog().with_user(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_our_own_signatures_hold_what_users_must(subject):
    """They are read without the checks on patterns, which take most of a second; so they are checked here."""
    file = resources.files("rayguard.faults").joinpath("signatures", f"{subject}.yaml")
    read = _signatures(file.read_text(encoding="utf-8"), file.name)
    ours = {one.id: one for one in default_catalog().signatures}
    assert read
    assert all(ours[one.id] == one for one in read)


def test_our_own_counsels_hold_what_users_must():
    """The same for their patterns."""
    entries = yaml.safe_load(
        resources.files("rayguard.faults").joinpath("signatures", "counsel.yaml").read_text()
    )
    for entry in entries["counsel"]:
        Counsel.model_validate(entry)


def test_a_pattern_is_compiled_when_it_is_asked():
    """Of a thousand, a failure asks a few."""
    one = Expression("a[bc]d")
    assert one._compiled is None
    assert one.search("xabdx")[0] == "abd"
    assert one.search("abc") is None
    assert one == Expression("a[bc]d") != Expression("other")
    assert {one, Expression("a[bc]d")} == {one}
    assert repr(one) == "Expression('a[bc]d')"
