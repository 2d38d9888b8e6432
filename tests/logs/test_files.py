"""Files as they lie on disks: any bytes, any encoding, folders, Ray sessions, links."""

import bz2
import gzip
import lzma
import os
import shutil
import socket
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayguard.errors import ConfigError
from rayguard.faults.catalog import Catalog
from rayguard.logs import folder, many_files
from rayguard.logs.encoding import inflated
from rayguard.logs.files import BLOCK_BYTES, LogFile, blocks, find, process_of
from rayguard.logs.many_files import Across, Fact, in_order
from rayguard.logs.report import diagnose_text
from rayguard.logs.scan import Anchors
from rayguard.logs.timestamps import Clock, stamp

CHUNKS = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/verl/protocol.py", line 701, in chunk
    assert len(self) % chunks == 0
AssertionError: only support equal chunk. Got size of DataProto 512 and chunk 6.
"""
NAN = "ValueError: Loss is NaN at step {}: gradients were not finite\n"


TWO = """
signatures:
- {id: t.chunk, kind: batch_indivisible, scope: job, cause: the batch is odd, advice: make it even, confidence: 0.9,
   when: {text: only support equal chunk}}
- {id: t.nan, kind: numeric_nan, scope: job, cause: the loss is no number, advice: go back a step, confidence: 0.9,
   when: {text: Loss is NaN}}
"""


@pytest.fixture(scope="module")
def reader():
    """Two causes, neither of them the effect of the other."""
    catalog = Catalog.from_yaml(TWO)
    return Across(catalog, Anchors(catalog))


def text_of(path, notes=None):
    """Return a file as it is read."""
    notes = [] if notes is None else notes
    (file,) = find([str(path)]).files
    return b"".join(blocks(file, notes)).decode("utf-8", "replace")


def written(path, text, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"]
)
def test_the_encoding_is_seen(tmp_path, reader, encoding):
    """By its mark or by its zero bytes; what is not UTF-8 is replaced."""
    path = written(tmp_path / "log", f"für alle\n{CHUNKS}", encoding)
    assert CHUNKS in text_of(path)
    report = reader.diagnose(find([str(path)]).files, [])
    assert (report.diagnosis.kind.value, report.evidence[0].line) == ("batch_indivisible", 5)


@given(
    st.binary(max_size=3_000), st.sampled_from([b"", b"\x1f\x8b", b"\xff\xfe", b"\x00", b"Traceback (most"])
)
@settings(max_examples=150)
def test_any_bytes_are_read(tmp_path_factory, data, head):
    """Nothing raises, and what comes out is bounded by what went in."""
    path = tmp_path_factory.getbasetemp() / "any.bin"
    path.write_bytes(head + data)
    notes = []
    read = text_of(path, notes)
    assert len(read) <= 1_100 * (len(data) + len(head))  # deflate packs a thousandfold
    assert len(notes) <= 1


@given(st.binary(max_size=2_000))
@settings(max_examples=60)
def test_any_bytes_are_diagnosed(tmp_path_factory, reader, data):
    """Whatever a file holds, there is an answer."""
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(data + b"\n" + CHUNKS.encode())
    report = reader.diagnose(find([str(path)]).files, [])
    assert report.diagnosis.kind is not None


PACKERS = [pytest.param(module.compress, id=module.__name__) for module in (gzip, bz2, lzma)]


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize("cut", [0, 4, 200])
def test_a_cut_archive_is_read_as_far_as_it_goes(tmp_path, cut, pack):
    """The job that wrote it was killed."""
    filling = "".join(f"step {n} of the job took {n * 7919 % 1013} s\n" for n in range(60_000))
    data = pack((CHUNKS + filling).encode())
    (tmp_path / "log.gz").write_bytes(data[: len(data) - cut])
    notes = []
    assert text_of(tmp_path / "log.gz", notes).startswith(CHUNKS)
    assert [("ends half-way" in note) for note in notes] == ([True] if cut else [])


@pytest.mark.parametrize("pack", PACKERS)
def test_an_archive_of_several_parts_is_read_whole(tmp_path, pack):
    """Rotated logs are often joined; the suffix does not matter, nor what a tape is filled up with."""
    (tmp_path / "log.txt").write_bytes(pack(b"one\n") + pack(b"two\n") + bytes(512))
    notes = []
    assert text_of(tmp_path / "log.txt", notes) == "one\ntwo\n"
    assert notes == []
    (tmp_path / "damaged").write_bytes(pack(b"one\n" * 99)[:12] + b"nonsense" * 9)
    text_of(tmp_path / "damaged", notes)
    assert "damaged" in notes[0]


@pytest.mark.parametrize("pack", PACKERS)
def test_a_bomb_is_unpacked_in_bounded_pieces(pack):
    """A gigabyte of zeros in a megabyte: never more than one piece at a time."""
    packed = pack(bytes(20_000_000))
    pieces = [len(piece) for piece in inflated(iter([packed]), "bomb", [])]
    assert max(pieces) <= BLOCK_BYTES
    assert sum(pieces) == 20_000_000


def test_what_holds_several_files_says_how_to_read_it(tmp_path):
    """Attachments of issues: a zip holds no lines at all, a packed tar holds those of all its files in a row."""
    (tmp_path / "train.log").write_text(CHUNKS)
    shutil.make_archive(str(tmp_path / "logs"), "zip", tmp_path, "train.log")
    shutil.make_archive(str(tmp_path / "logs"), "gztar", tmp_path, "train.log")
    notes = []
    text_of(tmp_path / "logs.zip", notes)
    assert CHUNKS in text_of(tmp_path / "logs.tar.gz", notes)
    assert ["zip archive: unzip it" in notes[0], "tar archive: unpack it" in notes[1]] == [True, True]


@pytest.mark.parametrize(
    ("name", "process"),
    [
        ("worker-0a1b2c3d4e5f-01000000-4711.err", "worker pid=4711"),
        ("python-core-worker-0a1b2c3d4e5f_4711.log", "worker pid=4711"),
        ("raylet.1.out", "raylet"),
        ("train.log", "train"),
    ],
)
def test_a_file_names_its_process(name, process):
    """For lines that do not say whose they are."""
    assert process_of(name) == process


def session(root, name="session_2026-11-20_18-43-16_1_2"):
    """Make what Ray leaves of a session."""
    logs = root / name / "logs"
    (root / name / "sockets").mkdir(parents=True)
    worker = "0a1b2c3d4e5f0a1b2c3d4e5f"
    for file, text in {
        "gcs_server.out": "[2026-11-20 18:43:20,000 I 1 1] (gcs_server) gcs.cc:1: started\n",
        "monitor.log": "2026-11-20 18:43:20,000\tINFO monitor.py:1 -- started\n",
        f"worker-{worker}-01000000-77.err": f":actor_name:Trainer\n{CHUNKS}",
        f"worker-{worker}-01000000-77.out": "",
        "raylet.out": "[2026-11-20 18:44:00,000 I 1 1] (raylet) node.cc:1: a worker exits\n",
        f"python-core-worker-{worker}_77.log": "[2026-11-20 18:44:00,000 I 77 77] core.cc:1: exits\n",
        "debug_state.txt": "ObjectStoreFullError: 0\n",
        "events/event_RAYLET.log": '{"message": "ready"}\n',
    }.items():
        written(logs / file, text)
    (logs / "picture.bin").write_bytes(bytes(range(256)) * 9)
    (root / name / "runtime_resources.log").write_text(NAN.format(1))
    return root / name


def test_a_ray_session_is_read_in_the_order_of_blame(tmp_path, reader):
    """Workers, core workers, raylet, GCS, events, the rest; nothing but its logs."""
    path = session(tmp_path)
    found = find([str(path)])
    kinds = [file.path.name.split("-0a")[0] for file in found.files]
    assert kinds == [
        "worker",
        "python-core-worker",
        "raylet.out",
        "gcs_server.out",
        "event_RAYLET.log",
        "monitor.log",
    ]
    assert "1 empty" in found.notes[0]
    assert "1 binary" in found.notes[0]
    report = reader.diagnose(found.files, found.notes)
    assert report.diagnosis.kind.value == "batch_indivisible"
    assert (report.evidence[0].file, report.evidence[0].line) == (found.files[0].name, 5)


def test_rays_own_folder_means_its_latest_session(tmp_path):
    """`rayguard diagnose /tmp/ray`."""
    session(tmp_path, "session_2026-11-19_1_1_1")
    session(tmp_path)
    (tmp_path / "session_latest").symlink_to("session_2026-11-20_18-43-16_1_2")
    found = find([str(tmp_path)])
    assert len(found.files) == 6
    assert all("session_latest" in file.name for file in found.files)
    assert "session_2026-11-20_18-43-16_1_2" in found.notes[0]


def test_links_are_followed_and_loops_are_not(tmp_path):
    """Each file once, whatever leads to it."""
    written(tmp_path / "a" / "x.log", "one\n")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "self").symlink_to("self")
    (tmp_path / "again.log").symlink_to("a/x.log")
    (tmp_path / "gone.log").symlink_to("nowhere")
    assert len(find([str(tmp_path)]).files) == 1
    assert len(find([str(tmp_path / "a" / "x.log"), str(tmp_path)]).files) == 1


def test_code_data_and_sockets_are_left_out(tmp_path):
    """A source file that raises ValueError is no failure; named by itself it is read."""
    written(tmp_path / "train.py", "raise ValueError('x')\n")
    written(tmp_path / ".hidden.log", "x\n")
    written(tmp_path / "good.txt", "x\n")
    (tmp_path / "hole.log").write_bytes(bytes(8_192) + b"\nthe rest\n")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "s"))
        found = find([str(tmp_path)])
        with pytest.raises(ConfigError, match="socket"):
            find([str(tmp_path / "s")])
    assert [file.path.name for file in found.files] == ["good.txt", "hole.log"]
    assert found.notes == [f"{tmp_path}: left out 1 code or data"]
    assert find([str(tmp_path / "train.py")]).files


def test_too_many_files_leave_the_newest(tmp_path, monkeypatch):
    """And a person is told."""
    monkeypatch.setattr(folder, "MAX_FILES", 3)
    for n in range(5):
        os.utime(written(tmp_path / f"{n}.log", "x\n"), (n, n))
    found = find([str(tmp_path)])
    assert [file.path.name for file in found.files] == ["2.log", "3.log", "4.log"]
    assert "2 older" in found.notes[0]
    monkeypatch.setattr(folder, "MAX_ENTRIES", 2)
    assert "3 after the first 2 entries" in find([str(tmp_path)]).notes[0]


@pytest.mark.parametrize("name", ["nothing", "nul\0", "a/b"])
def test_a_wrong_name_is_said(tmp_path, name):
    """That is the caller's to correct."""
    with pytest.raises(ConfigError, match="cannot read"):
        find([str(tmp_path / name)])


def test_a_file_that_goes_away_is_a_note(tmp_path):
    """Logs are rotated while they are read."""
    notes = []
    assert list(blocks(LogFile(name="x", path=tmp_path / "x"), notes)) == []
    assert "cannot be read" in notes[0]
    assert list(blocks(LogFile(name="x", path=tmp_path), notes)) == []


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("2026-11-20 18:43:16,247 INFO x", "2026-11-20T18:43:16.247Z stderr F x"),
        ("(W pid=1) INFO 11-20 18:43:16 [core.py:1] x", "I1120 18:43:16 1 x.cc:1] x"),
        ("[2026-11-20 18:43:16,247 E 1 1] (raylet) x", "2026/11/20 18:43:16.247 x"),
    ],
)
def test_stamps_of_all_forms_are_comparable(line, other):
    """With a year, without one, glog's."""
    assert stamp(line) is not None
    assert stamp(line) == stamp(other)


@pytest.mark.parametrize(
    "line", ["", "no stamp", "2026-99-99 18:43:16", "version 11-20", "x" * 10_000, "13-40 99:99:99"]
)
def test_what_only_looks_like_a_stamp_is_none(line):
    """Numbers are everywhere."""
    assert stamp(line) is None


def test_a_year_that_is_not_told_is_the_files():
    """A log of December, last written in January."""
    january = stamp("2026-01-01 00:10:00")
    clock = Clock(january)
    clock.see(1, "INFO 12-31 23:59:00 x")
    clock.see(2, "INFO 01-01 00:01:00 x")
    assert clock.at(1) < clock.at(2) <= january
    assert clock.at(9) == clock.at(2)


def test_the_cause_in_another_file_is_found_by_time(tmp_path, reader):
    """The first file's time-out came later than the second file's cause of another kind."""
    late = written(tmp_path / "a.log", "2026-11-20 18:50:00,000 ERROR x.py:1 -- " + NAN.format(3))
    early = written(tmp_path / "b.log", f"2026-11-20 18:40:00,000 INFO x.py:1 -- ok\n{CHUNKS}")
    report = reader.diagnose(find([str(late), str(early)]).files, [])
    assert report.diagnosis.kind.value == "batch_indivisible"
    assert (report.evidence[0].file, report.evidence[0].line) == (str(early), 5)
    assert (report.others[0].file, report.others[0].line) == (str(late), 1)
    later = written(tmp_path / "b.log", f"2026-11-20 18:59:00,000 INFO x.py:1 -- ok\n{CHUNKS}")
    report = reader.diagnose(find([str(later), str(late)]).files, [])
    assert report.diagnosis.kind.value == "numeric_nan"


def test_without_stamps_the_order_of_files_decides():
    """A file without stamps comes before the files named after it."""
    facts = [
        Fact(replace_line(line), file, at)
        for file, line, at in ((0, 9, 50.0), (1, 2, None), (2, 7, 30.0), (2, 8, 70.0))
    ]
    assert [(fact.file, fact.witness.line) for fact in in_order(facts)] == [(1, 2), (2, 7), (0, 9), (2, 8)]
    none = [fact._replace(at=None) for fact in facts]
    assert in_order(reversed(none)) == none


def replace_line(line):
    from rayguard.faults.witness import Source, Witness

    return replace(Witness(source=Source.LOG, quote="x"), line=line)


def test_one_file_is_judged_as_its_text(tmp_path, reader):
    """The same code, the same answer; only the file's name is added."""
    text = "".join(NAN.format(n) for n in range(300)) + CHUNKS
    path = written(tmp_path / "log", text)
    ours, theirs = reader.diagnose(find([str(path)]).files, []), diagnose_text(text, reader.catalog)
    assert ours.diagnosis == theirs.diagnosis
    assert ours.evidence == tuple(replace(one, file=str(path)) for one in theirs.evidence)


def test_facts_are_bounded(tmp_path, reader, monkeypatch):
    """However often a log repeats itself; what is new is kept."""
    seen = []
    monkeypatch.setattr(many_files, "report", lambda facts, *_: seen.extend(facts) or diagnose_text(""))
    path = written(tmp_path / "log", "".join(NAN.format(n) for n in range(5_000)) + CHUNKS)
    reader.diagnose(find([str(path)]).files, [])
    assert len(seen) < 200
    assert any("equal chunk" in fact.quote for fact in seen)
