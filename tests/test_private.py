"""Directories of ours in a place where others write too."""

import os
import stat

import pytest

from rayguard.private import open_private, open_regular
from tests.open_files import open_files

STRANGER = 65_534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")


def test_missing_directories_are_made_for_us_alone(tmp_path):
    """0700, whatever the umask says."""
    old = os.umask(0)
    try:
        os.close(open_private(tmp_path / "a" / "b"))
    finally:
        os.umask(old)
    for made in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_the_descriptor_is_the_directory(tmp_path):
    """What is opened relative to it lands in it, and no descriptor is left behind."""
    before = open_files()
    there = open_private(tmp_path / "a")
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=there))
    os.fsync(there)
    os.close(there)
    assert (tmp_path / "a" / "file").exists()
    assert not open_files() - before


def test_a_symlink_of_ours_is_followed(tmp_path):
    """A user may keep the state on another disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    os.close(open_private(tmp_path / "home" / "rayguard"))
    assert (tmp_path / "disk" / "rayguard").is_dir()


@needs_root
@pytest.mark.parametrize("place", ["rayguard-0", "parent/rayguard-0"])
def test_a_symlink_of_another_user_is_refused(tmp_path, place):
    """Another user must not choose where we write, at no step of the way."""
    (tmp_path / "victim").mkdir()
    link = tmp_path / place.split("/")[0]
    link.symlink_to(tmp_path / "victim")
    os.lchown(link, STRANGER, STRANGER)
    with pytest.raises(PermissionError, match=f"symlink of user {STRANGER}"):
        open_private(tmp_path / place)
    assert not list((tmp_path / "victim").iterdir())


@needs_root
def test_a_directory_of_another_user_is_refused(tmp_path):
    """Made first by somebody else, to read what we write."""
    (tmp_path / "taken").mkdir()
    os.chown(tmp_path / "taken", STRANGER, STRANGER)
    with pytest.raises(PermissionError, match=f"belongs to user {STRANGER}"):
        open_private(tmp_path / "taken")


def test_a_directory_that_everybody_may_write_is_refused(tmp_path):
    """Files in it can be replaced by anybody; the message says what to do."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError, match=r"chmod o-w.*RAYGUARD_HOME"):
        open_private(tmp_path / "open")


def test_a_file_in_the_way_is_an_error(tmp_path):
    """No silent other place."""
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        open_private(tmp_path / "file")


def test_reading_opens_only_what_cannot_trap_us(tmp_path):
    """A link could lead anywhere, a pipe would block for ever."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    assert open_regular(tmp_path / "link") is None
    assert open_regular(tmp_path / "pipe") is None
    assert open_regular(tmp_path / "missing") is None
    file = open_regular(tmp_path / "file")
    assert file is not None
    assert os.read(file, 10) == b"x"
    os.close(file)
