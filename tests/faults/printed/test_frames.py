"""Frames are read in every form in which programs and people write them."""

import pytest

from rayguard.faults.printed.frames import Frame, frame_in


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ('  File "/a/b.py", line 3, in f', Frame("/a/b.py", 3, "f")),
        (r"  File \"/a/b.py\", line 3, in f", Frame("/a/b.py", 3, "f")),
        ('  File "/a/b.py", line ~21, in f', Frame("/a/b.py", 21, "f")),
        ('  File "/a/b.py", line 3, in <mod', Frame("/a/b.py", 3, "<module>")),
        ('File "/a/b.py", line 3, in f x = g(y) ^^^^', Frame("/a/b.py", 3, "f", "x = g(y) ^^^^")),
        ('  File "/a/b.py", line 3, in f (Current frame)', Frame("/a/b.py", 3, "f")),
        ("  File /a/b.py, line 3, in C.f", Frame("/a/b.py", 3, "C.f")),
        ("  File /a/b.py line 3", Frame("/a/b.py", 3, "<module>")),
        ("File ~/b.py:53, in f(x)", Frame("~/b.py", 53, "f")),
        ("File ~/b.py:53", Frame("~/b.py", 53, "<module>")),
        ("~/b.py in f(x)", Frame("~/b.py", 0, "f")),
        ("tests/b.py:53: in f", Frame("tests/b.py", 53, "f")),
        ("  a/b.py, in f", Frame("a/b.py", 0, "f")),
        ("  a/b.py, line 53, in f", Frame("a/b.py", 53, "f")),
        ("    at C.f (/a/b.py:53)", Frame("/a/b.py", 53, "C.f")),
        ("    at <module> (/a/b.py:53)", Frame("/a/b.py", 53, "<module>")),
    ],
)
def test_a_frame_is_read(text, frame):
    """File, line and function, and its code where that stands on the same line."""
    read = frame_in(text)
    assert read is not None
    assert read == frame


@pytest.mark.parametrize(
    "text", ["it is in b.py, line 3", "look at f (b.py)", "File b.py", "saved to /a/b.py:3", ""]
)
def test_what_is_no_frame_is_none(text):
    """A file that is spoken of."""
    assert frame_in(text) is None
