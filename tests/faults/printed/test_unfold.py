"""Tracebacks on one line: as a repr, in a list, or without line ends."""

import json
import time

import pytest

from rayguard.faults.printed.line import peel
from rayguard.faults.printed.traceback import TracebackReader
from rayguard.faults.printed.unfold import MAX_LINES, unfolded

REPR = (
    r"KeyError: 'Traceback (most recent call last):\n  File "
    r'"/app/data.py", line 41, in get\n    return table[key]\nKeyError: \'id\'\n' + "'"
)
LISTED = (
    r"['Traceback (most recent call last):\n', '  File "
    r'"/app/data.py", line 41, in get\n    return table[key]\n'
    r"""', "KeyError: 'id'\n"]"""
)
JOINED = (
    'failed: Traceback (most recent call last): File "/app/run.py", line 7, in <module> main() '
    "File \"/app/data.py\", line 41, in get return table[key] KeyError: 'id'"
)


def _read(text):
    reader = TracebackReader()
    found = [reader.feed(line)[1] for line in unfolded(peel(text, 5))]
    return [one for one in (*found, reader.end()) if one is not None]


@pytest.mark.parametrize("text", [REPR, LISTED, JOINED])
def test_a_traceback_on_one_line_is_read(text):
    """With its frames and code, where the line stands."""
    (one,) = _read(text)
    assert (one.type_name, one.message, one.line.number) == ("KeyError", "'id'", 5)
    assert (one.frames[-1].file, one.frames[-1].code) == ("/app/data.py", "return table[key]")


PRINTED = """\
Traceback (most recent call last):
  File "/app/data.py", line 41, in get
    return table["id"]
KeyError: 'id'"""


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"message": PRINTED}),
        json.dumps({"level": "error", "message": "it failed", "exc_info": PRINTED}),
        json.dumps({"log": json.dumps({"msg": PRINTED})}),
        "ERROR " + json.dumps({"severity": "ERROR", "detail": PRINTED})[:-2],
        json.dumps({"log": json.dumps({"detail": PRINTED})})[:-5],
    ],
)
def test_a_traceback_in_json_is_read(text):
    """Whole, beside the message, within another one, or cut off."""
    (one,) = _read(text)
    assert (one.type_name, one.message[:3]) == ("KeyError", "'id")
    assert [(str(frame), frame.code) for frame in one.frames] == [
        ("/app/data.py:41 in get", 'return table["id"]')
    ]


@pytest.mark.parametrize(
    "write", [json.dumps, repr, lambda text: json.dumps({"level": "error", "msg": text})]
)
def test_lines_that_were_written_as_one_are_lines_again(write):
    """Without a traceback too; each may have a prefix of its own."""
    one, two = unfolded(
        peel(write("it went on\n(WorkerDict pid=12) ERROR 05-11 14:20:55 [a.py:3] No space left"), 5)
    )
    assert (one.text, two.text, two.number) == ("it went on", "No space left", 5)
    assert (two.process, two.source, two.level) == ("WorkerDict pid=12", "a.py:3", "ERROR")


def test_an_assertion_beside_its_type_quotes_itself():
    """The line of code and the last line were run together."""
    (one,) = _read("assert n % k == 0 AssertionError")
    assert (one.type_name, one.message) == ("AssertionError", "assert n % k == 0")
    assert _read("    assert n % k == 0, n AssertionError: 7")[0].message == "7"


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):",
        r'  File "C:\new\table.py", line 3, in f',
        "self.assertRaises(AssertionError)",
        r"a message with \n in it",
    ],
)
def test_other_lines_stay_as_they_are(text):
    """One line in, the same line out."""
    line = peel(text)
    assert unfolded(line) == (line,)


def test_the_work_is_bounded():
    """Whatever a line holds."""
    frame = r'File "/a.py", line 1, in f\n'
    started = time.monotonic()
    for text in (frame * 9_000, 'File "/a.py", line 1, in f ' * 9_000, "assert " + "AssertionError " * 9_000):
        assert len(unfolded(peel("Traceback (most recent call last):" + text))) <= MAX_LINES + 1
    assert time.monotonic() - started < 2
