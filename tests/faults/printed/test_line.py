"""Prefixes come off, and nothing else does."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.faults.printed.line import MAX_LINE_CHARS, PrintedLine, peel, printable

FORMS = {
    "(WorkerDict pid=12, ip=10.0.0.3) step 4": ("WorkerDict pid=12, ip=10.0.0.3", "", "", "step 4"),
    "\x1b[36m(WorkerDict pid=12)\x1b[0m   File": ("WorkerDict pid=12", "", "", "  File"),
    "[36m(WorkerDict pid=12)[0m step 4": ("WorkerDict pid=12", "", "", "step 4"),
    "(Rollout pid=1) (EngineCore_0 pid=2) ERROR 09-10 23:11:31 [core.py:700] Traceback (most recent call last):": (
        "Rollout pid=1 EngineCore_0 pid=2",
        "core.py:700",
        "ERROR",
        "Traceback (most recent call last):",
    ),
    "[rank1]:[E528 08:54:01.164295950 ProcessGroupGloo.cpp:145] Gloo connectFullMesh failed": (
        "rank1",
        "ProcessGroupGloo.cpp:145",
        "ERROR",
        "Gloo connectFullMesh failed",
    ),
    "[2022-02-07 04:22:10,942 E 1260 1261] (raylet) main.cc:12: gone": (
        "1260 1261 raylet",
        "main.cc:12",
        "ERROR",
        "gone",
    ),
    "[2024-11-29 18:44:18,452 E 26180 25180] (raylet.exe) logging.cc:108: gone": (
        "26180 25180 raylet.exe",
        "logging.cc:108",
        "ERROR",
        "gone",
    ),
    "logs/raylet.out:12:[2025-05-13 10:58:47,347 W 30 31] actor_manager.cc:110: gone": (
        "logs/raylet.out 30 31",
        "actor_manager.cc:110",
        "WARNING",
        "gone",
    ),
    "./worker-7e.err:  File": ("./worker-7e.err", "", "", "  File"),
    "bench-1.node001.gpu0 [stderr] [rank11]:   File": ("bench-1.node001.gpu0 rank11", "stderr", "", "  File"),
    "(Trainer pid=7) \rEpoch:  25%|## | 1/4 [00:01, 9.5s/it, loss=nan]": (
        "Trainer pid=7",
        "",
        "",
        "Epoch:  25%|## | 1/4 [00:01, 9.5s/it, loss=nan]",
    ),
    "FAILED tests/test_a.py::test_b[c-1] - RuntimeError: gone": ("", "", "", "RuntimeError: gone"),
    "2023-10-26 18:20:07 | ERROR | stderr |   File": ("", "stderr", "ERROR", "  File"),
    "2023-10-27 10:10:44,120\tERROR worker.py:405 -- Unhandled": ("", "worker.py:405", "ERROR", "Unhandled"),
    "INFO 02-07 04:22:10 logger.py:12] Received": ("", "logger.py:12", "INFO", "Received"),
    "[core.py:399]   File": ("", "core.py:399", "", "  File"),
    "2025-08-30 21:47:09.514  >> ERROR 08-30 21:47:09 [core.py:398]   File": (
        "",
        "core.py:398",
        "ERROR",
        "  File",
    ),
    "[2025-03-01 10:00:00 TP3] Scheduler hit": ("TP3", "", "", "Scheduler hit"),
    "2025-05-11 15:32:43.929 ERROR:    KeyError: 'x'": ("", "", "ERROR", "KeyError: 'x'"),
    "ERROR:    AttributeError: no": ("", "", "ERROR", "   AttributeError: no"),
    "WARNING:root:careful": ("", "root", "WARNING", "careful"),
    '"2025-08-07T21:02:33+08:00"   File': ("", "", "", "  File"),
    "20260320-11:20:06.245 Launcher ERROR: gone": ("", "Launcher", "ERROR", "gone"),
    "2026-11-24 13:00:19,501 code_sandbox WARNING gone": ("", "code_sandbox", "WARNING", "gone"),
    "2026-11-24 13:00:19,501 [code_sandbox] WARNING: gone": ("", "code_sandbox", "WARNING", "gone"),
    "2025-08-21T19:47:55.972+03:00 HTTP Error 429": ("", "", "", "HTTP Error 429"),
    "[Thu Mar 20 21:01:25 2025] oom_reaper": ("", "", "", "oom_reaper"),
    "Nov 20 18:00:00 gpu7 kernel: [12345.678901] NVRM: Xid": ("gpu7", "kernel", "", "NVRM: Xid"),
    '{"log":"ERROR 05-11 14:20:55 [core.py:399] gone\\n","stream":"stderr"}': (
        "",
        "core.py:399",
        "ERROR",
        "gone",
    ),
    "2024-05-01T10:00:00.123456Z stderr F KeyError: 'x'": ("", "stderr", "", "KeyError: 'x'"),
    "3: Traceback (most recent call last):": ("3", "", "", "Traceback (most recent call last):"),
    "(raylet) it died [repeated 12x across cluster]": ("raylet", "", "", "it died"),
}
EVENT = '{"event": "line", "data": "[rank3]: Queue 7 aborting with error", "pipe": "stderr"}'
FORMS[EVENT] = ("rank3", "", "", "Queue 7 aborting with error")
PLAIN = (
    "ValueError: (pid=3) is no pid",
    '  File "/a/b.py", line 3, in f',
    "[1, 2, 3] are the sizes",
    "12 of 13: done",
    "(a) first, (b) second",
    "assert x == (y)",
    "./a.log: no such file",
)


@pytest.mark.parametrize("raw", FORMS)
def test_a_known_prefix_tells_whose_line_it_is(raw):
    """Process, logger and level are read off; the text keeps its indent."""
    line = peel(raw, 7)
    assert (line.process, line.source, line.level, line.text) == FORMS[raw]
    assert line.number == 7
    assert line.prefixed


@pytest.mark.parametrize("raw", PLAIN)
def test_what_is_no_prefix_stays(raw):
    """Brackets alone are no prefix."""
    assert peel(raw) == PrintedLine(0, raw, width=len(raw))


def test_a_warning_of_python_is_mild():
    """Its text stays whole: it says where it was given."""
    line = peel("/opt/lib/a.py:36: UserWarning: it is incompatible with b")
    assert line.mild
    assert line.text.startswith("/opt/lib/a.py:36: UserWarning: ")
    assert not peel("ValueError: a.py gave a UserWarning: it is incompatible").mild


def test_overwritten_progress_is_not_there_any_more():
    """A terminal shows the last state of a bar; an error beside it counts."""
    assert printable("  1%|  | 1/9\r  2%|  | 2/9\r") == "  2%|  | 2/9"
    assert printable("  1%|  | 1/9\rRuntimeError: boom") == "RuntimeError: boom"


@given(st.text())
def test_any_text_gives_one_printable_line(raw):
    """Never raises; nothing that a terminal would act on."""
    line = peel(raw)
    assert "\x1b" not in line.text or "\x1b[" not in line.text
    assert len(line.text) <= MAX_LINE_CHARS + 3
    assert peel(line.text).text is not None


@pytest.mark.parametrize(
    "unit", ["[", "(", "a ", "1:", "[0m", "\x1b[", "\r", '{"', "ERROR ", "2024-01-01 ", "(pid=", "0% |"]
)
def test_time_does_not_explode(unit):
    """Twice the line takes about twice the time, at most, whatever it is made of."""

    def spent(count):
        began = time.process_time()
        for _ in range(20):
            peel(unit * count)
        return time.process_time() - began

    spent(10)
    assert spent(4_000) < 12 * spent(1_000) + 0.05


@pytest.mark.parametrize(
    ("raw", "process", "text"),
    [
        ("vllm-llm-1  | ERROR 03-30 02:15:01 [engine.py:160] AssertionError", "vllm-llm-1", "AssertionError"),
        (
            "[VllmSidecar koo8C]: 2024-11-13T03:15:08.672Z 1 stdout: CRITICAL 11-12 19:15:08 launcher.py:99] dead",
            "VllmSidecar koo8C",
            "dead",
        ),
    ],
)
def test_what_runs_a_container_puts_its_name_before_the_line(raw, process, text):
    """Several prefixes, one inside the other."""
    line = peel(raw)
    assert (line.process, line.text) == (process, text)


def test_the_mark_of_an_error_in_pytest_comes_off():
    """With the bar of whatever ran pytest; a letter alone is no mark."""
    assert peel("E       KeyError: 'x'").text == "KeyError: 'x'"
    assert peel("  | E         File").text == "  File"
    assert peel("E  = 3").text == "E  = 3"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("File &quot;/a.py&quot;, line 3, in &lt;module&gt;", 'File "/a.py", line 3, in <module>'),
        ("KeyError: &#x27;id&#39; &amp;&amp; no &copy; of it", "KeyError: 'id' && no &copy; of it"),
        ("File \u201c/a.py\u201d, line\u00a03: \u2018id\u2019", "File \"/a.py\", line 3: 'id'"),
    ],
)
def test_what_a_page_or_a_word_processor_wrote_is_as_it_was_printed(raw, text):
    """Texts are copied out of both."""
    assert peel(raw).text == text
