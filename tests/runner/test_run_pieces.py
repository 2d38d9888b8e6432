"""The pieces of a run by themselves: endings, kept output, what a command finds in its environment."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.dialects.dialect import Command
from rayguard.errors import ConfigError
from rayguard.logs.files import blocks
from rayguard.runner.ending import Ending
from rayguard.runner.life.environment import environment_of
from rayguard.runner.life.kept_output import HEAD_BYTES, TAIL_BYTES, KeptOutput
from rayguard.runner.plan import command_of, serves

PYTHON = Command(words=(sys.executable, "train.py"))
NAMES = ("RAY_RUNTIME_ENV_PLUGINS", "RAY_RUNTIME_ENV_HOOK", "RAYGUARD_PLUGIN")


@pytest.mark.parametrize(
    ("returncode", "code", "number", "told"),
    [
        (0, 0, None, None),
        (1, 1, None, None),
        (-9, 137, 9, None),
        (-2, 130, 2, 2),
        (137, 137, 9, None),
        (143, 143, 15, 15),
        (247, 247, 9, None),
        (241, 241, 15, 15),
        (255, 255, None, None),
        (254, 254, None, None),
        (200, 200, None, None),
    ],
)
def test_an_ending_is_read_as_shells_and_launchers_mean_it(returncode, code, number, told):
    """128 + n of shells, 256 - n of a Python that passes a child's code on; -1 and -2 are plain failures."""
    ending = Ending(returncode)
    assert (ending.code, ending.signal, ending.told_to_go) == (code, number, told)


def kept_bytes(kept):
    return b"".join(blocks(kept.log(), []))


@pytest.fixture
def kept():
    output = KeptOutput()
    yield output
    output.close()


def test_a_small_output_is_kept_whole(kept):
    """Without a change."""
    kept.feed(1, b"one\ntw")
    kept.feed(1, b"o\nlast")
    kept.end()
    assert kept_bytes(kept) == b"one\ntwo\nlast\n"


def test_nothing_printed_is_no_log(kept):
    """And nothing that could be read."""
    kept.end()
    assert kept.log() is None


def test_neither_stream_cuts_a_line_of_the_other(kept):
    """Chunks come as pipes give them, and not line by line."""
    kept.feed(1, b"step 1: lo")
    kept.feed(2, b"Traceback (most recent call last):\n  File")
    kept.feed(1, b"ss 0.1\n")
    kept.feed(2, b' "a.py"\n')
    kept.end()
    assert kept_bytes(kept).splitlines() == [
        b"Traceback (most recent call last):",
        b"step 1: loss 0.1",
        b'  File "a.py"',
    ]


def test_a_flood_keeps_its_beginning_and_its_end_in_whole_lines(kept):
    """On a file of bounded size, within little time of a processor."""
    line = "{:09d} {}\n"
    count = 100 * 1024
    began = time.process_time()
    for first in range(0, count, 64):
        kept.feed(1, "".join(line.format(n, "x" * 1013) for n in range(first, first + 64)).encode())
        assert kept.log().size_bytes <= HEAD_BYTES + 2 * TAIL_BYTES + (1 << 17)
    kept.end()
    assert time.process_time() - began < 20
    said = kept_bytes(kept).decode().splitlines()
    assert len(kept_bytes(kept)) <= HEAD_BYTES + TAIL_BYTES + 200
    (gap,) = (at for at, one in enumerate(said) if "left out" in one)
    numbers = [int(one[:9]) for one in (*said[:gap], *said[gap + 1 :])]
    assert numbers[:gap] == list(range(gap))
    assert numbers[gap:] == list(range(numbers[gap], count))
    assert (gap, len(numbers) - gap) > (1000, 8000)
    assert f" {(numbers[gap] - gap) * 1024} bytes are left out" in said[gap]


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_whatever_is_printed_is_kept_in_its_order(chunks):
    """Of one stream, byte for byte, but for an end of line at its end."""
    kept = KeptOutput()
    for chunk in chunks:
        kept.feed(1, chunk)
    kept.end()
    whole = b"".join(chunks)
    found = os.pread(os.open(kept.log().path, os.O_RDONLY), 1 << 20, 0) if kept.log() else b""
    kept.close()
    assert found in (whole, whole + b"\n")


def test_the_plugin_is_on_where_the_command_s_python_is_ours(monkeypatch):
    """All of its three names; what the user set stays."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    environment, why = environment_of(PYTHON, plugin=True, hooks=False)
    assert why == ""
    assert "rayguard.cluster.plugin" in environment[NAMES[0]]
    assert environment["RAYGUARD_PLUGIN"] == "{}"
    monkeypatch.setenv("RAYGUARD_PLUGIN", '{"memory": false}')
    assert environment_of(PYTHON, plugin=True, hooks=False)[0]["RAYGUARD_PLUGIN"] == '{"memory": false}'


@pytest.mark.parametrize(
    ("words", "set_to", "plugin"),
    [
        (("/usr/bin/env", "x"), "", False),
        (("/no/where/python", "x"), "", True),
        ((sys.executable, "x"), '[{"class": "their.Plugin"}]', True),
    ],
)
def test_the_plugin_is_off_where_ray_might_not_start_with_it(monkeypatch, words, set_to, plugin):
    """Another Python, another plugin, or a user who does not want it."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    if set_to:
        monkeypatch.setenv(NAMES[0], set_to)
    environment, why = environment_of(Command(words=words), plugin=plugin, hooks=False)
    assert why
    assert "RAYGUARD_PLUGIN" not in environment
    assert environment.get(NAMES[0], "") == set_to


def test_hooks_of_frameworks_come_before_the_user_s_own_path(monkeypatch):
    """And are off with the plugin."""
    monkeypatch.setenv("PYTHONPATH", "/mine")
    path = environment_of(PYTHON, plugin=True, hooks=True)[0]["PYTHONPATH"].split(os.pathsep)
    assert (Path(path[0]) / "sitecustomize.py").is_file()
    assert path[1:] == ["/mine"]
    assert environment_of(PYTHON, plugin=False, hooks=True)[0]["PYTHONPATH"] == "/mine"


def test_a_command_s_own_variables_come_before_its_program():
    """As a shell, or ``env``, takes them."""
    for words in (["A=1", "B=2=3", "python", "C=4"], ["env", "A=1", "B=2=3", "python", "C=4"]):
        command = command_of(words)
        assert command.words == ("python", "C=4")
        assert command.environment == {"A": "1", "B": "2=3"}


@pytest.mark.parametrize("words", [[], ["A=1"], [""], ["python", "a\0b"]])
def test_what_is_no_command_is_refused(words):
    """With what to write."""
    with pytest.raises(ConfigError, match=r"rayguard run -- python train\.py|NUL"):
        command_of(words)


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("vllm serve m", True),
        ("/opt/bin/swift rollout --model m", True),
        ("trl vllm-serve --model m", True),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", True),
        ("swift rlhf --x 1", False),
        ("python serve.py", False),
    ],
)
def test_servers_are_known_by_their_words(line, is_one):
    """What else serves is said with ``--server``."""
    assert serves(Command(words=tuple(line.split()))) is is_one
