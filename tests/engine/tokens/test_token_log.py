"""The token log against what kills its writer, fills its disk or damages its file."""

import errno
import os
import random
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.engine.tokens.token_writer as writer
from rayguard.engine.generated import Generated
from rayguard.engine.tokens import frames as token_frames
from rayguard.engine.tokens import log as token_log
from rayguard.engine.tokens.file import TokenLogFile
from rayguard.engine.tokens.frames import COMMIT_AT, HEADER_BYTES, Logged
from rayguard.engine.tokens.log import TokenLog, read_left, read_log
from rayguard.errors import ConfigError
from rayguard.recovery.tally import TALLY
from tests.open_files import open_files

DEADLINE_S = 120  # a machine with ten jobs for each core still finishes
SMALL = 1 << 17  # the file is written anew every few hundred operations


def generated(count, first=0, width=1, version="v1"):
    numbers = range(first, first + count)
    return Generated(
        tokens=array("i", numbers),
        width=width,
        ids=array("i", (n for n in numbers for _ in range(width))),
        logprobs=array("f", (-n for n in numbers for _ in range(width))),
        ranks=array("i", numbers) if width else array("i"),
        versions=((version, 0),),
    )


def logged(state):
    return {name: Logged(asked, tokens) for name, (asked, tokens) in state.items()}


@contextmanager
def new_log(**options):
    """Give a log in a directory of its own: Hypothesis runs many in one test."""
    with tempfile.TemporaryDirectory() as directory:
        log = TokenLog(Path(directory) / "tokens.log", **options)
        try:
            yield log
        finally:
            log.close()


@pytest.fixture
def log(tmp_path):
    log = TokenLog(tmp_path / "logs" / "tokens.log", limit_bytes=1 << 20)
    yield log
    log.close()


@pytest.fixture
def errors():
    before = TALLY.guard_errors["token_log"]
    return lambda: TALLY.guard_errors["token_log"] - before


# -- what is read is what was written ----------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c", "\ud800 half a character"])
texts = st.text(max_size=8) | st.just("\udfff")
tokens = st.integers(-(1 << 31), (1 << 31) - 1)
numbers = st.floats(width=32, allow_nan=False)


@st.composite
def pieces(draw, width=None):
    count = draw(st.integers(0, 5))
    width = draw(st.integers(0, 2)) if width is None else width
    rows = {"min_size": count * width, "max_size": count * width}
    starts = sorted(draw(st.sets(st.integers(0, max(0, count - 1)), max_size=2)))
    return Generated(
        tokens=array("i", draw(st.lists(tokens, min_size=count, max_size=count))),
        width=width,
        ids=array("i", draw(st.lists(tokens, **rows))),
        logprobs=array("f", draw(st.lists(numbers, **rows))),
        ranks=array("i", range(count)) if width else array("i"),
        versions=tuple((draw(texts), start) for start in starts),
    )


operations = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), names, texts),
        st.tuples(st.just("append"), st.lists(st.tuples(names, pieces(width=1)), max_size=4)),
        st.tuples(st.just("end"), st.lists(names, max_size=3)),
    ),
    max_size=25,
)


@given(operations)
def test_any_sequence_reads_as_a_plain_dictionary(done):
    """At every point a reader finds the requests in flight with all their tokens, and no other."""
    state = {}
    with new_log(limit_bytes=1 << 20) as log:
        for operation in done:
            writer.write(log, operation)
            state = writer.apply(state, operation)
            assert read_log(log.path) == logged(state)
        assert (log.refused, log.cut) == (0, 0)


@given(st.lists(pieces(), max_size=6))
def test_pieces_are_put_together_as_generated_does(made):
    """Reading agrees with ``Generated.plus`` on everything, also on versions that begin late or change width."""
    with new_log() as log:
        log.begin("a", "")
        whole = Generated()
        for piece in made:
            log.append([("a", piece)])
            whole = whole.plus(piece) if piece.tokens else whole
        assert read_log(log.path)["a"].generated == whole


def test_a_reader_is_told_how_many_tokens_the_writer_had_and_did_not_write(log):
    """It stays as the file is written, cleared and written anew; no other file has such a number."""
    log.begin("a", "x")
    log.behind(7)
    log.append([("a", generated(3))])
    assert read_left(log.path) == ({"a": Logged("x", generated(3))}, 7)
    log.end(["a"])
    assert read_left(log.path) == ({}, 7)
    log.behind(0)
    assert read_left(log.path) == ({}, 0)
    (log.path.parent / "other").write_bytes(b"x" * 200)
    assert read_left(log.path.parent / "other") == read_left(log.path.parent / "none") == ({}, None)


def test_a_request_that_begins_again_begins_empty(log):
    """The tokens of its first life are not those of its second."""
    log.begin("a", "one")
    log.append([("a", generated(3))])
    log.begin("a", "two")
    log.append([("a", generated(2, first=7))])
    assert read_log(log.path) == {"a": Logged("two", generated(2, first=7))}


def test_two_entries_of_one_request_in_one_flush_come_in_order(log):
    """A flush may hold more than one piece of a request."""
    log.begin("a", "")
    log.append([("a", generated(3)), ("a", generated(2, first=3))])
    assert read_log(log.path)["a"].generated == generated(5)


def test_what_never_began_is_not_logged(log):
    """An id that the log does not know is ignored, by ``append`` and by ``end``."""
    log.append([("stranger", generated(3))])
    log.end(["stranger"])
    assert read_log(log.path) == {}


def test_a_piece_that_breaks_its_invariant_costs_only_its_own_request(log, errors):
    """Half a row of log-probabilities, or wide numbers, make no frame false; what stood before stays."""
    for name in ("half", "wide", "good"):
        log.begin(name, "")
        log.append([(name, generated(2))])
    half = Generated(tokens=array("i", [1, 2]), width=1, ids=array("i", [1]), logprobs=array("f", [1, 2, 3]))
    wide = Generated(tokens=array("q", [1, 2]))
    log.append([("half", half), ("good", generated(2, first=2)), ("wide", wide)])
    log.append([("half", half)])
    log.append([(name, generated(2, first=4)) for name in ("half", "wide", "good")])
    found = {name: value.generated for name, value in read_log(log.path).items()}
    assert found == {"half": generated(2), "wide": generated(2), "good": generated(6)}
    assert (log.cut, errors()) == (2, 2)


# -- the file ----------------------------------------------------------------------------------------------


def test_the_file_is_private_and_goes_when_the_log_is_closed(tmp_path):
    """0600 in a directory that nobody else may write, whatever the umask says."""
    old = os.umask(0)
    try:
        log = TokenLog(tmp_path / "new" / "tokens.log")
    finally:
        os.umask(old)
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.path.parent.stat().st_mode) == 0o700
    log.begin("a", "")
    log.close()
    log.close()
    assert list(log.path.parent.iterdir()) == []
    log.begin("a", "")
    log.append([("a", generated(1))])
    log.end(["a"])
    assert read_log(log.path) == {}


def test_a_log_leaves_no_descriptor_behind(tmp_path):
    """Neither when it writes its file anew, nor when it closes, nor when it is read."""
    before = open_files()
    log = TokenLog(tmp_path / "tokens.log", limit_bytes=SMALL)
    first = log._file
    log.begin("stays", "")
    for _ in range(5):
        fill(log, "a", SMALL // 2)
        log.end(["a"])
    read_log(log.path)
    assert log._file is not first
    log.close()
    assert not open_files() - before


def test_a_later_log_of_the_same_name_takes_over(tmp_path):
    """An engine that is made anew may open its log before the old one is closed."""
    old = TokenLog(tmp_path / "tokens.log")
    new = TokenLog(tmp_path / "tokens.log")
    old.close()
    new.begin("a", "x")
    assert read_log(new.path) == {"a": Logged("x", Generated())}
    new.close()


def test_a_forked_child_writes_nothing(log, monkeypatch):
    """It has the map of its parent: what it wrote there would stand between the parent's frames."""
    log.begin("a", "x")
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 1)
        log.begin("b", "")
        log.append([("a", generated(1))])
        log.end(["a"])
    assert read_log(log.path) == {"a": Logged("x", Generated())}


@pytest.mark.parametrize("limit", [0, 4_095, (1 << 30) + 1])
def test_a_limit_that_cannot_work_is_refused(tmp_path, limit):
    """The message has the bounds."""
    with pytest.raises(ConfigError, match="4096 to 1073741824"):
        TokenLog(tmp_path / "tokens.log", limit_bytes=limit)
    assert list(tmp_path.iterdir()) == []


# -- damage ------------------------------------------------------------------------------------------------


def prefix_of_what_was_written(found, history):
    """Say whether each request in ``found`` is the beginning of one in ``history``."""
    return all(
        any((name, value.fingerprint) == life[:2] and begins(life[2], value.generated) for life in history)
        for name, value in found.items()
    )


def begins(whole, part):
    """Say whether ``part`` is the first tokens of ``whole``; without a token no width is known."""
    return part == (whole.first(len(part)) if part.tokens else Generated())


def history_of(done):
    """Return each life of each request with all its tokens, ended or not."""
    state, lives = {}, []
    for operation in [*done, ("end", list(IDS))]:
        after = writer.apply(state, operation)
        again = operation[1] if operation[0] == "begin" else None
        lives += [(n, *value) for n, value in state.items() if n not in after or n == again]
        state = after
    return lives


IDS = ("a", "b", "c", "\ud800 half a character")


@st.composite
def damages(draw, size):
    """Return a truncation, some flipped bits, or both, of a file of ``size`` bytes."""
    flips = draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 7)), max_size=3))
    return draw(st.integers(0, size) | st.just(size)), flips


@given(operations, st.data())
def test_damage_never_raises_and_never_invents_a_token(done, data):
    """Of a torn or flipped file at most a prefix of each request's tokens is read."""
    with new_log(limit_bytes=1 << 20) as log:
        for operation in done:
            writer.write(log, operation)
        whole = log.path.read_bytes()[: log._file.end + 64]
    length, flips = data.draw(damages(len(whole)))
    bytes_ = bytearray(whole)
    for at, bit in flips:
        bytes_[at] ^= 1 << bit
    found = token_frames.parse(bytes(bytes_[:length]))
    assert prefix_of_what_was_written(found, history_of(done))


def test_a_file_cut_anywhere_has_all_whole_frames(tmp_path, log):
    """At every length: exactly the frames that end before it."""
    states, ends = [{}], [HEADER_BYTES]
    for operation in [
        ("begin", "a", "x"),
        ("append", [("a", generated(3))]),
        ("begin", "b", "y"),
        ("append", [("a", generated(2)), ("b", generated(1))]),
        ("end", ["a"]),
    ]:
        writer.write(log, operation)
        states.append(writer.apply(states[-1], operation))
        ends.append(log._file.end)
    whole = log.path.read_bytes()
    for length in range(ends[-1] + 1):
        (tmp_path / "cut").write_bytes(whole[:length])
        frames = sum(end <= length for end in ends)
        assert read_log(tmp_path / "cut") == (logged(states[frames - 1]) if frames else {})


def test_what_was_not_committed_is_not_read(log):
    """A whole frame behind the valid length was written by someone who was killed before the commit."""
    log.begin("a", "x")
    before = log._file.end
    log.append([("a", generated(3))])
    words = memoryview(log._file.map)[:HEADER_BYTES].cast("Q")
    words[COMMIT_AT // 8] = before
    words.release()
    assert read_log(log.path) == {"a": Logged("x", Generated())}


@given(st.lists(st.tuples(st.integers(0, 4), st.binary(max_size=80)), max_size=5))
def test_frames_with_a_right_checksum_and_nonsense_inside_never_raise(forged):
    """The checksum proves that a frame is as it was written, not that a writer of ours wrote it."""
    good = token_frames.frame(token_frames.BEGIN, token_frames.begun(1, "a", "x"))
    more = token_frames.frame(token_frames.APPEND, token_frames.entry(1, 0, generated(2)))
    token_frames.parse(log_of([good, more, *(token_frames.frame(kind, body) for kind, body in forged)]))


def test_frames_from_before_a_file_was_cleared_do_not_come_back(log):
    """They still lie behind the new ones, and a reader that was late may have been told to look at them."""
    log.begin("a", "x")
    log.begin("b", "x")
    full = log._file.end
    log.end(["a", "b"])
    assert read_log(log.path) == {}
    log.begin("c", "x")
    words = memoryview(log._file.map)[:HEADER_BYTES].cast("Q")
    words[COMMIT_AT // 8] += full - log._file.end
    words.release()
    assert read_log(log.path) == {"c": Logged("x", Generated())}


GOOD = token_frames.entry(1, 0, Generated(tokens=array("i", [1, 2]), ranks=array("i", [1, 2])))
HEADER = token_frames.header("1-1")
RANKS_AT = 20  # in an entry


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (token_frames.APPEND, GOOD + b"nonsense"),
        (token_frames.APPEND, GOOD + GOOD[:-1]),
        (token_frames.APPEND, GOOD + GOOD[:RANKS_AT] + b"\1" + GOOD[RANKS_AT + 1 : -4]),
        (token_frames.BEGIN, token_frames.begun(2, "b", "x") + b"more"),
        (token_frames.BEGIN, token_frames.begun(2, "b", "x")[:-1]),
        (token_frames.END, b"123"),
        (4, b""),
    ],
)
def test_of_a_frame_that_is_nonsense_nothing_is_taken(kind, body):
    """Not even the entries before the nonsense, nor what comes behind it."""
    parts = [
        token_frames.frame(token_frames.BEGIN, token_frames.begun(1, "a", "x")),
        token_frames.frame(kind, body),
        token_frames.frame(token_frames.BEGIN, token_frames.begun(3, "c", "x")),
    ]
    assert token_frames.parse(log_of(parts)) == {"a": Logged("x", Generated())}


def log_of(parts, header=HEADER):
    data = header + b"".join(parts)
    return data[:COMMIT_AT] + len(data).to_bytes(8, sys.byteorder) + data[HEADER_BYTES:]


def test_a_log_of_another_format_or_with_a_damaged_owner_reads_as_nothing(monkeypatch):
    """A later version may mean something else by the same bytes."""
    parts = [token_frames.frame(token_frames.BEGIN, token_frames.begun(1, "a", "x"))]
    monkeypatch.setattr(token_frames, "_VERSION", token_frames._VERSION + 1)
    later = log_of(parts, token_frames.header("1-1"))
    monkeypatch.undo()
    whole = log_of(parts)
    damaged = whole.replace(b"1-1", b"1-2", 1)
    assert token_frames.parse(whole).keys() == {"a"}
    assert token_frames.parse(later) == token_frames.parse(damaged) == {}


def test_an_entry_behind_a_gap_is_not_taken():
    """Tokens that would stand in the wrong place are worse than none."""
    parts = [
        token_frames.frame(token_frames.BEGIN, token_frames.begun(1, "a", "x")),
        token_frames.frame(token_frames.APPEND, token_frames.entry(1, 0, generated(2))),
        token_frames.frame(token_frames.APPEND, token_frames.entry(1, 3, generated(2, first=3))),
    ]
    assert token_frames.parse(log_of(parts))["a"].generated == generated(2)


@pytest.mark.parametrize(
    "make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/etc/hostname"), Path.touch]
)
def test_what_is_no_log_reads_as_nothing_in_flight(tmp_path, make):
    """A directory, a pipe (which would block), a link, an empty file, no file."""
    make(tmp_path / "made")
    assert read_log(tmp_path / "made") == {}
    assert read_log(tmp_path / "missing") == {}


# -- killed at any instant ---------------------------------------------------------------------------------


@pytest.fixture
def writing(tmp_path):
    """Start writers, one after the other; each gives (process, log, progress, seed)."""
    started = []

    def start(seed, limit_bytes=SMALL):
        log, progress = tmp_path / f"{seed}" / "tokens.log", tmp_path / f"progress-{seed}"
        done = writer.counter(progress)
        arguments = [str(log), str(progress), str(limit_bytes), str(seed)]
        process = subprocess.Popen([sys.executable, writer.__file__, *arguments], stdin=subprocess.PIPE)
        started.append(process)
        started_by, pause = time.monotonic() + DEADLINE_S, threading.Event()
        while not done[0] and process.poll() is None and time.monotonic() < started_by:
            pause.wait(0.001)
        assert process.poll() is None
        return process, log, done

    yield start
    for process in started:
        process.kill()
        process.wait(DEADLINE_S)
        process.stdin.close()


def until_done(done, count):
    """Look without a pause: one would be longer than many operations."""
    deadline = time.monotonic() + DEADLINE_S
    while done[0] < count and time.monotonic() < deadline:
        pass


def test_a_killed_writer_leaves_all_but_at_most_its_last_frame(writing):
    """20 kills behind a random operation, in appends and while the file is written anew."""
    rng = random.Random(20)
    stopped = []
    for seed in range(20):
        process, path, done = writing(seed)
        until_done(done, rng.randrange(writer.OPERATIONS * 9 // 10))
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
        assert read_log(path) in map(logged, writer.states(seed, done[0], done[0] + 1))
        stopped.append(done[0])
    assert min(stopped) < writer.OPERATIONS  # in the loop; on a machine that is very busy not each time


def test_a_second_process_reads_while_the_writer_writes(writing):
    """Each look finds one of the states that the writer went through meanwhile, also while it changes files."""
    looks, changes = 0, 0
    for seed in range(40, 60):
        seen, inodes = looked_at(*writing(seed)[1:])
        states = [logged(state) for state in writer.states(seed, 0, writer.OPERATIONS)]
        assert all(found in states[before : after + 1] for before, found, after in seen)
        looks, changes = looks + len(seen), changes + len(inodes) - 1
        if looks > 20 and changes > 1:  # a busy machine may leave the reader few looks at each writer
            return
    pytest.fail(f"{looks} looks and {changes} changes of files")


def looked_at(path, done):
    """Read until the writer is through: (operations before, what was read, operations after at most)."""
    inodes, seen = set(), []
    deadline = time.monotonic() + DEADLINE_S
    while done[0] < writer.OPERATIONS and time.monotonic() < deadline:
        before = done[0]
        inodes.add(path.stat().st_ino)
        found = read_log(path)
        seen.append((before, found, done[0] + 1))
    return seen, inodes


def at_every_line(look, files):
    """Return a trace function that calls ``look`` before every line of ``files``, as a kill would find it."""

    def trace(frame, event, _):
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            sys.settrace(None)
            look()
            sys.settrace(trace)
        return trace

    return trace


def test_at_every_line_of_the_writer_its_file_is_whole(tmp_path):
    """Before each line of code, also while the file is written anew, a reader finds the state before or after."""
    log = TokenLog(tmp_path / "tokens.log", limit_bytes=1 << 14)
    files = {sys.modules[type(part).__module__].__file__ for part in (log, log._file)}
    state, after = {}, {}
    seen, new_files, lines = [], 0, 0

    def look():
        nonlocal lines
        lines += 1
        seen.append(read_log(log.path))

    before_tracing = sys.gettrace()
    for operation in [*islice(writer.operations(3), 110), ("end", writer.IDS), ("begin", "again", "x")]:
        after, file = writer.apply(state, operation), log._file
        near = log._file.allocated - log._file.end < 1_500  # only then anything but a put happens
        seen.clear()
        sys.settrace(at_every_line(look, files) if near or operation[0] != "append" else None)
        try:
            writer.write(log, operation)
        finally:
            sys.settrace(before_tracing)
        new_files += log._file is not file
        assert all(found in (logged(state), logged(after)) for found in seen)
        state = after
    log.close()
    assert new_files >= 3
    assert lines > 500


# -- full --------------------------------------------------------------------------------------------------


def fill(log, name, size):
    """Begin ``name`` and append to it until it takes ``size`` bytes."""
    log.begin(name, "")
    first = 0
    while first * 16 < size:
        log.append([(name, generated(32, first=first))])
        first += 32
    return first


@given(operations, st.integers(4_096, 6_000))
def test_a_full_log_keeps_a_prefix_and_takes_requests_again(done, limit):
    """Whatever does not fit is counted; what is read is true; the file stays within its limit."""
    state, big = {}, 20
    with new_log(limit_bytes=limit) as log:
        for operation in done:
            op = operation
            if op[0] == "append":  # the same pieces, often
                op = ("append", [(n, p) for n, p in operation[1] for _ in range(big)])
            writer.write(log, op)
            state = writer.apply(state, op)
            found = read_log(log.path)
            assert found.keys() <= state.keys()
            short = 0
            for name, value in found.items():
                asked, whole = state[name]
                assert value.fingerprint == asked
                assert begins(whole, value.generated)
                short += len(value.generated) < len(whole)
            assert len(state) - len(found) <= log.refused
            assert short <= log.cut
            assert log.path.stat().st_blocks * 512 <= limit + 4_096
        log.end(list(IDS))
        log.begin("a", "again")
        log.append([("a", generated(8))])
        assert read_log(log.path) == {"a": Logged("again", generated(8))}


def test_new_requests_are_refused_before_running_ones_are_cut(tmp_path):
    """The last quarter of the room is for those that run already."""
    log = TokenLog(tmp_path / "tokens.log", limit_bytes=SMALL)
    written = fill(log, "a", SMALL * 8 // 10)
    log.begin("b", "")
    log.append([("a", generated(8, first=written)), ("b", generated(8))])
    assert read_log(log.path) == {"a": Logged("", generated(written + 8))}
    assert (log.refused, log.cut) == (1, 0)
    log.end(["a"])
    log.begin("b", "")
    assert read_log(log.path) == {"b": Logged("", Generated())}
    log.close()


def test_the_room_of_forgotten_requests_is_used_before_any_is_cut(tmp_path):
    """At the limit also where more must be copied than is gained."""
    log = TokenLog(tmp_path / "tokens.log", limit_bytes=SMALL)
    first = fill(log, "stays", SMALL * 55 // 100)
    fill(log, "a", SMALL * 30 // 100)
    log.end(["a"])
    while first * 16 < SMALL * 80 // 100:
        log.append([("stays", generated(32, first=first))])
        first += 32
    assert read_log(log.path) == {"stays": Logged("", generated(first))}
    assert log.cut == 0
    log.close()


def test_a_piece_that_is_too_large_takes_no_other_with_it(tmp_path):
    """The log-probabilities of a whole vocabulary fit nowhere; the other requests of the flush do."""
    log = TokenLog(tmp_path / "tokens.log", limit_bytes=SMALL)
    log.begin("a", "")
    log.begin("b", "")
    log.append(
        [("a", generated(1)), ("b", generated(4, width=SMALL)), ("b", generated(4, first=4, width=SMALL))]
    )
    log.append([("a", generated(1, first=1)), ("b", generated(1))])
    assert read_log(log.path) == {"a": Logged("", generated(2)), "b": Logged("", Generated())}
    assert log.cut == 1
    log.close()


def test_the_end_of_all_requests_fits_into_a_full_log(tmp_path):
    """Each in its own frame: one that could not be written down would be continued after it was answered."""
    log = TokenLog(tmp_path / "tokens.log", limit_bytes=8_192)
    ids = [f"{n}" for n in range(60)]
    for name in ids:
        log.begin(name, "")
    first = 0
    while not log.cut:
        log.append([("0", generated(1, first=first))])
        first += 1
    alive = read_log(log.path).keys()
    assert len(alive) > 30
    for name in ids:
        log.end([name])
        assert name not in read_log(log.path)
    log.close()


def test_memory_is_given_back_when_nothing_is_in_flight(tmp_path):
    """A burst does not hold its blocks for ever."""
    log = TokenLog(tmp_path / "tokens.log", limit_bytes=1 << 20)
    quiet = log.path.stat().st_blocks
    fill(log, "a", 1 << 19)
    assert log.path.stat().st_blocks >= (1 << 19) // 512
    log.end(["a"])
    assert log.path.stat().st_blocks < 2 * quiet
    log.close()


def test_the_file_stays_small_while_little_is_in_flight(tmp_path):
    """Room comes from what was forgotten before it comes from the machine."""
    log = TokenLog(tmp_path / "tokens.log", limit_bytes=1 << 20)
    log.begin("stays", "")
    log.append([("stays", generated(8))])
    for _ in range(100):
        fill(log, "a", 1 << 15)
        log.end(["a"])
        assert log.path.stat().st_blocks * 512 < 3 << 17
    assert read_log(log.path) == {"stays": Logged("", generated(8))}
    log.close()


def test_a_full_log_is_not_copied_again_and_again(tmp_path, monkeypatch):
    """A copy of all that is in flight that makes no room would cost each of many requests a pause."""
    made = []
    monkeypatch.setattr(
        token_log, "TokenLogFile", lambda *a, **k: made.append(TokenLogFile(*a, **k)) or made[-1]
    )
    log = TokenLog(tmp_path / "tokens.log", limit_bytes=SMALL)
    ids = [f"{n}" for n in range(30)]
    for name in ids:
        log.begin(name, "")
    first = 0
    while not log.cut:
        log.append([("0", generated(1, first=first))])
        first += 1
    log.append([(name, generated(8)) for name in ids])
    assert log.cut == len(ids)
    assert len(made) <= 2  # the frames of single tokens are some garbage themselves
    log.close()


# -- no space on the device --------------------------------------------------------------------------------


@pytest.fixture
def full_device(monkeypatch):
    """Make every allocation of blocks fail while the returned list is empty."""
    space = [True]
    real = os.posix_fallocate

    def allocate(file, offset, size):
        if not space:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    return space


def test_a_full_device_costs_tokens_and_nothing_else(tmp_path, full_device, errors, caplog):
    """What is there stays readable, nothing is raised, it is said once, and room is used when it comes back."""
    log = TokenLog(tmp_path / "tokens.log", limit_bytes=SMALL)
    log.begin("a", "")
    full_device.clear()
    written = 0
    while not log.cut:
        log.append([("a", generated(32, first=32 * written))])
        written += 1
    assert read_log(log.path)["a"].generated == generated(32 * (written - 1))
    fill(log, "b", SMALL)
    assert read_log(log.path).keys() == {"a", *log._live}
    assert errors() >= 1
    assert caplog.text.count("does not keep everything") == 1
    log.end(["a", "b"])
    assert read_log(log.path) == {}
    log.begin("c", "still full")
    log.append([("c", generated(4))])
    assert read_log(log.path) == {"c": Logged("still full", generated(4))}
    full_device.append(True)
    first = fill(log, "c", SMALL // 2)
    assert read_log(log.path) == {"c": Logged("", generated(first))}
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.log"]
    log.close()


@pytest.mark.parametrize("broken", ["posix_fallocate", "ftruncate", "rename"])
def test_a_log_that_cannot_be_made_leaves_nothing_behind(tmp_path, monkeypatch, broken):
    """Only the constructor raises, and says what the system said."""

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = open_files()
    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(OSError, match="No space left"):
        TokenLog(tmp_path / "tokens.log")
    assert list(tmp_path.iterdir()) == []
    assert not open_files() - before
