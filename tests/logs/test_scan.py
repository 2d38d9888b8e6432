"""Huge logs in one pass: what is found, with its true line, in linear time and bounded memory."""

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayguard.faults.catalog import default_catalog
from rayguard.logs import many_files, scan
from rayguard.logs.files import find
from rayguard.logs.many_files import Across
from rayguard.logs.scan import Anchors, Scan, shortened, telling
from tests.benchmarks.bench_logs import FAILURE, write_log

CATALOG = default_catalog()
ANCHORS = Anchors(CATALOG)
HEALTHY = b"(WorkerDict pid=7, ip=10.0.0.1) step:12 - actor/loss:0.4 - reward/mean:0.7\n"


def scanned(data, block=1 << 20):
    return list(Scan(ANCHORS).read(data[at : at + block] for at in range(0, len(data), block)))


@pytest.fixture(scope="module")
def huge(tmp_path_factory):
    path = tmp_path_factory.mktemp("huge") / "train.log"
    return path, write_log(path, 20_000_000)


def diagnosed(path):
    return Across(CATALOG, ANCHORS).diagnose(find([str(path)]).files, [])


def test_a_buried_cause_is_found_at_its_line(huge):
    """20 MB of a healthy job, six lines of it tell."""
    path, first = huge
    report = diagnosed(path)
    assert report.diagnosis.kind.value == "batch_indivisible"
    assert report.evidence[0].line == first + FAILURE.count("\n") - 1
    with path.open("rb") as file:
        line = next(itertools.islice(file, report.evidence[0].line - 1, None))
    assert b"only support equal chunk" in line


def test_the_scan_answers_as_the_whole_reading(tmp_path, monkeypatch):
    """What lies between the windows says nothing."""
    path = tmp_path / "train.log"
    write_log(path, 4_000_000)
    monkeypatch.setattr(scan, "WHOLE_LINES", 10**9)
    whole = diagnosed(path)
    monkeypatch.setattr(many_files, "WHOLE_BYTES", 0)
    assert diagnosed(path) == whole


def test_small_texts_are_given_whole():
    """Every line, with its number; many empty ones are not a small text."""
    data = b"a\n\nb\nc"
    assert list(telling([data], ANCHORS)) == [(1, b"a"), (2, b""), (3, b"b"), (4, b"c")]
    assert list(telling([], ANCHORS)) == []
    assert len(list(telling([b"\n" * 3_000_000], ANCHORS))) == scan.TAIL_LINES


_LINES = st.lists(
    st.sampled_from(
        [b"", b"healthy", b"ValueError: x", b"Traceback (most recent call last):", "für".encode()]
    ),
    max_size=60,
)


@given(_LINES, st.integers(1, 40), st.integers(0, 3), st.integers(0, 3))
@settings(max_examples=200)
def test_windows_are_exact(lines, block, before, after):
    """However the text is cut into blocks: the lines round hits, each once, in order, with its number."""
    found = set()
    for number, line in enumerate(lines, start=1):
        if any(anchor in line for anchor in (b"Error", b"Traceback")):
            found.update(range(max(number - before, 1), min(number + after, len(lines)) + 1))
    data = b"\n".join(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "BEFORE", before)
        patch.setattr(scan, "AFTER", after)
        patch.setattr(scan, "TAIL_LINES", 0)
        given_ = scanned(data, block)
    assert [line.number for line in given_] == sorted({line.number for line in given_})
    split = data.split(b"\n")
    assert all(split[line.number - 1] == line.raw for line in given_)
    hits = {n for n in found if any(a in split[n - 1] for a in (b"Error", b"Traceback"))}
    assert hits <= {line.number for line in given_} <= found | {len(lines)}


@given(st.binary(max_size=4_000), st.integers(1, 700))
@settings(max_examples=100)
def test_any_bytes_keep_their_lines(data, block):
    """The tail is given in any case; nothing is made up."""
    split = data.split(b"\n")
    assert all(split[number - 1] == raw for number, raw in scanned(data, block))


def test_repeating_errors_are_bounded_and_the_first_and_last_kept():
    """An all-error log: the earliest and the last lines, and some between."""
    given_ = scanned(b"".join(b"RuntimeError: number %d\n" % n for n in range(200_000)))
    assert len(given_) < 20_000
    assert given_[0].number == 1
    assert given_[-1].number == 200_000


def test_a_rare_cause_behind_a_flood_is_kept():
    """Common words drown only themselves."""
    flood = b"".join(b"ConnectionError: retry %d\n" % n for n in range(60_000))
    given_ = scanned(flood + HEALTHY * 9_000 + FAILURE.encode() + HEALTHY * 9_000)
    assert any(b"only support equal chunk" in line.raw for line in given_)


@pytest.mark.parametrize("size", [30_000_000])
def test_a_line_without_end_is_cut(size):
    """One line of any length: its beginning, its first hit, its end; memory as for a short one."""
    largest = 0

    def blocks():
        yield b"begin "
        for n in range(size >> 20):
            yield (
                b"x" * (1 << 20)
                if n != 9
                else b"y" * 100_000 + b" ValueError: in the middle " + b"z" * 100_000
            )
        yield b" the end"

    (line,) = Scan(ANCHORS).read(blocks())
    largest = max(largest, len(line.raw))
    assert largest <= scan.LONG_LINE
    assert line.raw.startswith(b"begin ")
    assert line.raw.endswith(b" the end")
    assert b"ValueError: in the middle" in line.raw


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 4_000))
@settings(max_examples=60)
def test_a_long_line_becomes_short(begin, end, more):
    """Its two ends stay."""
    line = begin + b"-" * (scan.LONG_LINE + more) + end
    short = shortened(line, ANCHORS.finder)
    assert len(short) <= scan.LONG_LINE
    assert short.startswith(begin)
    assert short.endswith(end)


HOSTILE = {
    "errors": lambda n: b"".join(b"E%d.FooError: message %d\n" % (i, i) for i in range(n)),
    "anchors": lambda n: b"".join(
        ANCHORS.patterns[i % len(ANCHORS.patterns)] + b" %d\n" % i for i in range(n)
    ),
    "tracebacks": lambda n: b"".join(
        b'Traceback (most recent call last):\n  File "a.py", line %d, in f\n' % i for i in range(n // 2)
    ),
    "dense": lambda n: (b"ErrorException" * 6 + b"\n") * n,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_time_is_linear(name, tmp_path):
    """Four times the lines take about four times as long: a ratio, so that the machine does not matter."""

    def took(lines):
        path = tmp_path / f"{lines}.log"
        path.write_bytes(HOSTILE[name](lines))
        begin = time.process_time()
        diagnosed(path)
        return time.process_time() - begin

    few = min(took(3_000) for _ in range(2))
    assert min(took(12_000) for _ in range(2)) < 8 * few + 0.3


def test_every_fragment_is_looked_for():
    """Whatever signature a line fits, the line is found; an anchor never holds a line break."""
    assert all(b"\n" not in pattern and pattern.strip() for pattern in ANCHORS.patterns)
    for fragment in CATALOG.index.fragments:
        data = f"x {fragment} y\n".encode()
        assert ANCHORS.finder.find_matches_as_indexes(data), fragment


def test_a_text_where_everything_is_common_ends(monkeypatch):
    """When no anchor is left, the last lines still are."""
    monkeypatch.setattr(scan, "FLOOD", 1_000)
    monkeypatch.setattr(scan, "COMMON", 5)
    every = b" ".join(ANCHORS.patterns)
    given_ = scanned(b"".join(b"%d %s\n" % (n, every) for n in range(100)) + b"healthy\n" * 50_000)
    assert given_[0].number == 1
    assert given_[-1].number == 50_100
    assert len(given_) <= 100 + scan.AFTER + scan.TAIL_LINES
