"""Settings: where they come from, and what a bad one says."""

import os
import tempfile
from pathlib import Path

import pytest

from rayguard.config import Settings, default_home
from rayguard.errors import ConfigError


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("RAYGUARD_") or name == "XDG_STATE_HOME":
            monkeypatch.delenv(name)


def test_argument_beats_environment_beats_default(monkeypatch, tmp_path):
    """The explicit word wins, always."""
    assert Settings().metrics_port is None
    monkeypatch.setenv("RAYGUARD_METRICS_PORT", "9400")
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path / "environment"))
    assert Settings().metrics_port == 9400
    assert Settings().home == tmp_path / "environment"
    assert Settings(metrics_port=0, home=tmp_path / "argument").metrics_port == 0
    assert Settings(home=tmp_path / "argument").home == tmp_path / "argument"


@pytest.mark.parametrize("off", ["off", "None", "no", ""])
def test_metrics_port_can_be_switched_off_in_words(monkeypatch, off):
    """An environment has no None."""
    monkeypatch.setenv("RAYGUARD_METRICS_PORT", off)
    assert Settings().metrics_port is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RAYGUARD_METRICS_PORT", "ninety"),
        ("RAYGUARD_METRICS_PORT", "70000"),
        ("RAYGUARD_JOURNAL_MAX_BYTES", "12"),
        ("RAYGUARD_JOURNAL_KEEP", "0"),
        ("RAYGUARD_HOME", "~a-user-who-does-not-exist/x"),
    ],
)
def test_a_bad_variable_is_named_with_its_value(monkeypatch, name, value):
    """Whoever set it must see which one, what it was, and what the default is."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        Settings()
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
    assert "default" in str(caught.value)


def test_a_bad_argument_is_named_as_argument(monkeypatch):
    """The environment is not blamed for what the code passed."""
    monkeypatch.setenv("RAYGUARD_METRICS_PORT", "9400")
    with pytest.raises(ConfigError, match=r"Settings\(metrics_port=\.\.\.\) is 'x'") as caught:
        Settings(metrics_port="x")
    assert "RAYGUARD_METRICS_PORT" not in str(caught.value)


def test_an_unknown_argument_lists_the_known_ones():
    """A misspelt setting is not ignored."""
    with pytest.raises(ConfigError, match=r"no argument 'metric_port'.*metrics_port"):
        Settings(metric_port=1)


def test_every_mistake_is_told_at_once(monkeypatch):
    """Nobody should repair one variable after the other."""
    monkeypatch.setenv("RAYGUARD_METRICS_PORT", "x")
    monkeypatch.setenv("RAYGUARD_JOURNAL_KEEP", "y")
    with pytest.raises(ConfigError, match=r"RAYGUARD_METRICS_PORT.*RAYGUARD_JOURNAL_KEEP"):
        Settings()


def test_home_follows_xdg(monkeypatch, tmp_path):
    """The XDG state directory, where there is one; nothing is created by asking."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert Settings().home == tmp_path / "state" / "rayguard"
    assert not (tmp_path / "state").exists()


def test_home_is_in_the_users_home_otherwise(monkeypatch, tmp_path):
    """The same place in each process of a user."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_home() == tmp_path / ".local" / "state" / "rayguard"


@pytest.mark.parametrize("state", ["relative/path", "/dev/null/x"])
def test_home_falls_back_to_a_directory_of_this_user(monkeypatch, state):
    """A home that cannot be written must not cost the journal."""
    monkeypatch.setenv("XDG_STATE_HOME", state)
    assert default_home() == Path(tempfile.gettempdir()) / f"rayguard-{os.getuid()}"


def test_home_falls_back_where_we_may_not_write(monkeypatch, tmp_path):
    """A container's root, or a home on a disk that is mounted for somebody else."""
    home = tmp_path / "rayguard"
    home.mkdir()
    if os.getuid() == 0:
        os.chown(home, 65_534, 65_534)
    else:
        home.chmod(0o500)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_home() == Path(tempfile.gettempdir()) / f"rayguard-{os.getuid()}"


def test_an_explicit_home_is_never_replaced(monkeypatch):
    """Who names a place looks there; its errors are told when it is written."""
    monkeypatch.setenv("RAYGUARD_HOME", "/proc/nowhere")
    assert Settings().home == Path("/proc/nowhere")


def test_a_relative_home_does_not_depend_on_a_later_directory(monkeypatch, tmp_path):
    """Ray workers run in other directories than the driver."""
    monkeypatch.chdir(tmp_path)
    settings = Settings(home="state")
    monkeypatch.chdir("/")
    assert settings.home == tmp_path / "state"
