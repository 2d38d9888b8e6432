"""What users and packages add to the catalog: the guard goes on without what is broken, a person is told."""

import logging
import os
from importlib.metadata import EntryPoint

import pytest

from rayguard.config import Settings
from rayguard.errors import ConfigError
from rayguard.faults import catalog_in_use as users
from rayguard.faults.catalog import default_catalog
from rayguard.faults.catalog_in_use import catalog_for, catalog_in_use, signatures_in

MINE = """
signatures:
- id: {id}
  kind: user_code
  scope: code
  cause: {cause}
  advice: put a coaster under it
  confidence: 0.9
  when: {{text: wobble detected}}
"""


def offered():
    """Give a catalog, as the entry point of a package does."""
    return MINE.format(id="package.wobble", cause="the package wobbled")


def broken():
    raise SystemError("a stranger's mistake")


number = 5


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    for name in list(os.environ):
        if name.startswith("RAYGUARD_"):
            monkeypatch.delenv(name)
    catalog_in_use.cache_clear()
    yield
    catalog_in_use.cache_clear()


@pytest.fixture
def points(monkeypatch):
    """Stand in for installed packages."""
    values = {}
    monkeypatch.setattr(
        users,
        "entry_points",
        lambda group: [EntryPoint(name, value, group) for name, value in values.items()],
    )
    return values


@pytest.fixture
def mine(tmp_path):
    def write(name, **fields):
        path = tmp_path / name
        path.write_text(MINE.format(**{"id": "mine.wobble", "cause": "the table wobbled", **fields}))
        return path

    return write


def test_without_additions_it_is_ours():
    """The same signatures in the same order, read once."""
    assert catalog_in_use().signatures == catalog_for().signatures == default_catalog().signatures
    assert catalog_in_use() is catalog_in_use()


def test_files_of_the_environment_come_first_the_last_one_foremost(mine, monkeypatch):
    """As in PATH, several; the guard and the command have the same."""
    one, two = mine("one.yaml"), mine("two.yaml", cause="the other table wobbled")
    monkeypatch.setenv("RAYGUARD_CATALOG", f"{one}{os.pathsep}{two}")
    assert catalog_in_use().signatures == catalog_for().signatures
    assert catalog_in_use().named("mine.wobble").cause == "the other table wobbled"
    assert catalog_in_use().signatures[0].id == "mine.wobble"
    assert len(catalog_in_use().signatures) == len(default_catalog().signatures) + 1


def test_a_users_signature_replaces_ours_of_the_same_id(mine):
    """Ours is gone, not merely asked later."""
    ours = default_catalog().signatures[-1].id
    catalog = catalog_for([mine("mine.yaml", id=ours)])
    assert [one.cause for one in catalog.signatures if one.id == ours] == ["the table wobbled"]


def test_a_package_offers_text_or_a_path(points, mine, monkeypatch, tmp_path):
    """By a callable or a path; a user's file comes before it."""
    points["text"] = f"{__name__}:offered"
    assert catalog_in_use().named("package.wobble").cause == "the package wobbled"
    monkeypatch.setattr(f"{__name__}.number", mine("path.yaml"))
    points["text"] = f"{__name__}:number"
    assert catalog_for().named("mine.wobble")
    assert (
        catalog_for([mine("user.yaml", cause="the user's table")]).named("mine.wobble").cause
        == "the user's table"
    )


@pytest.mark.parametrize("value", ["broken", "number", "nothing", "default_catalog"])
def test_a_broken_package_is_left_out_by_the_guard_and_told_to_a_person(points, value, caplog):
    """Once, in the log, with its name."""
    points["wobbly"] = f"{__name__}:{value}"
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert catalog_in_use().signatures == catalog_in_use().signatures == default_catalog().signatures
    assert len(caplog.records) == 1
    assert "wobbly" in caplog.text
    with pytest.raises(ConfigError, match="wobbly"):
        catalog_for()


@pytest.mark.parametrize(
    "text", ["nonsense", "signatures: 2024-99-99", "signatures: [{id: x}]", "[" * 3_000, "\0"]
)
def test_a_broken_file_is_left_out_by_the_guard(tmp_path, mine, monkeypatch, caplog, text):
    """The others stay."""
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text)
    good = mine("good.yaml")
    monkeypatch.setenv("RAYGUARD_CATALOG", f"{wrong}:{tmp_path / 'nowhere.yaml'}:{good}")
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert catalog_in_use().named("mine.wobble")
    assert [path in caplog.text for path in ("wrong.yaml", "nowhere.yaml", "good.yaml")] == [
        True,
        True,
        False,
    ]
    with pytest.raises(ConfigError, match=r"wrong\.yaml"):
        signatures_in(wrong)


def test_a_setting_that_cannot_be_used_does_not_stop_the_guard(monkeypatch, caplog):
    """Another variable may be wrong, too."""
    monkeypatch.setenv("RAYGUARD_METRICS_PORT", "many")
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert catalog_in_use().signatures == default_catalog().signatures
    assert "RAYGUARD_METRICS_PORT" in caplog.text


def test_the_setting_is_a_list_of_paths(tmp_path, monkeypatch):
    """Absolute, whatever the working directory will be; argument before environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYGUARD_CATALOG", f"one.yaml{os.pathsep}/two.yaml{os.pathsep}")
    assert [str(path) for path in Settings().catalogs] == [f"{tmp_path}/one.yaml", "/two.yaml"]
    assert [str(path) for path in Settings(catalog=["/three.yaml"]).catalogs] == ["/three.yaml"]
    assert Settings(catalog="").catalogs == ()
    with pytest.raises(ConfigError, match="catalog"):
        Settings(catalog=5)
