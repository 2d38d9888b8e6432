"""The commands for a cluster where there is none, and screens of clusters that nobody runs."""

import functools
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from fabricated_cluster import a_story, a_worker, answers, node_id, readings, troubled
from rich.console import Console

from rayguard.cli.cluster import _tell_installed
from rayguard.cli.cluster_views import lines, whole
from rayguard.cluster.install.up_and_down import what_came
from rayguard.cluster.view import connect
from rayguard.cluster.view.answers import view
from rayguard.cluster.view.connect import UnreachableError, address_here, connected
from rayguard.errors import ConfigError
from rayguard.tried import RAY, TRIED

DEADLINE_S = 120


def command(home, *arguments, **environment):
    """Run the command where no cluster is known."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY", "COLUMNS", "FORCE_COLOR"))}
    return subprocess.run(
        [sys.executable, "-m", "rayguard", *map(str, arguments)],
        env={**clean, "RAYGUARD_HOME": str(home), "RAY_TMPDIR": str(home), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.fixture(scope="module")
def web_server():
    """What listens where Ray should: a dashboard's port, say."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.05))
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def nobody():
    """An address where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and never listening: nobody else gets it meanwhile
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("what", ["up", "down", "status", "top", "incidents"])
def test_nothing_listens_there(what, nobody, tmp_path):
    """A sentence and exit code 1, for every command; nothing is said on standard output."""
    ran = command(tmp_path, what, "--address", nobody)
    assert ran.returncode == 1
    assert f"nothing listens at {nobody}" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


@pytest.mark.parametrize(("scheme", "is_not"), [("", "control process"), ("ray://", "Ray Client server")])
def test_something_else_listens_there(web_server, tmp_path, scheme, is_not):
    """It is said what was expected and which ports are usual; Ray alone would wait for most of a minute."""
    ran = command(tmp_path, "status", "--address", f"{scheme}{web_server}")
    assert ran.returncode == 1
    assert f"what listens at {web_server} is not" in ran.stderr
    assert is_not in ran.stderr
    assert "6379" in ran.stderr


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("http://127.0.0.1:8265", "the dashboard's address does not do"),
        ("somewhere", "HOST:PORT"),
        ("somewhere:port", "HOST:PORT"),
        ("somewhere:70000", "HOST:PORT"),
        (":6379", "HOST:PORT"),
        ("::1", "HOST:PORT"),
        ("ray://", "HOST:PORT"),
    ],
)
def test_what_is_no_address_is_bad_usage(address, says):
    """Before anything is tried."""
    with pytest.raises(ConfigError, match=says), connected(address):
        pass


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("10.0.0.1:6379", ("10.0.0.1", 6379)),
        ("[::1]:6379", ("::1", 6379)),
        ("ray://head:10001/", ("head", 10001)),
        ("ray://head", ("head", 10001)),
    ],
)
def test_addresses_are_read(address, place):
    """With an IPv6 one, and the client's own port."""
    assert connect._place(address) == place


def test_bad_usage_is_exit_code_2(tmp_path):
    """No cluster known, an address that is none, options that exclude each other."""
    for arguments, says in (
        (["up"], "no cluster is known here"),
        (["top", "--address", "http://x:1"], "dashboard"),
        (["top", "--every", "0"], "--every"),
        (["incidents", "--follow", "--stories"], "--follow"),
        (["incidents", "--follow", "--address", "x:1"], "--follow"),
    ):
        ran = command(tmp_path, *arguments)
        assert (ran.returncode, says in ran.stderr) == (2, True), (arguments, ran.stderr)
        assert "Traceback" not in ran.stderr


def test_the_address_is_rays_own_where_none_is_given(tmp_path, monkeypatch):
    """RAY_ADDRESS, then what ``ray start`` wrote down; neither loads Ray."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert address_here() is None
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.7:6379\n")
    assert address_here() == "10.0.0.7:6379"
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert address_here() == "10.0.0.7:6379"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.8:6379")
    assert address_here() == "10.0.0.8:6379"


def test_the_note_of_a_cluster_that_is_gone_leaves_status_as_it_was(tmp_path, nobody):
    """This machine's pages, and no waiting."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(nobody)
    ran = command(tmp_path, "status")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "No guarded process has left a page" in ran.stdout


@pytest.mark.parametrize("what", ["up", "down", "top", "status", "incidents"])
def test_help_teaches_with_an_example(what, tmp_path):
    """What to type first."""
    ran = command(tmp_path, what, "--help")
    assert ran.returncode == 0
    assert "--address" in ran.stdout
    assert f"rayguard {what}" in ran.stdout.split("Options")[0].partition("Usage")[2].partition("\n")[2]


def test_an_unknown_version_of_ray_is_a_warning_and_another_one_an_error(monkeypatch):
    """Ray refuses to connect different ones; one that nobody has tried may work."""
    import platform

    import ray

    assert connect._judge("here:1", ray.__version__, platform.python_version()) == ()
    monkeypatch.setitem(TRIED, RAY, ((1, 13), (1, 13)))
    (note,) = connect._judge("here:1", ray.__version__, platform.python_version())
    assert f"Ray {ray.__version__} was not tried" in note
    assert connect._judge("here:1", "", "") == ()
    with pytest.raises(UnreachableError, match=r"runs Ray 9\.9\.9"):
        connect._judge("here:1", "9.9.9", platform.python_version())


class LockedHead(grpc.GenericRpcHandler):
    """Ray's control process as far as the first question: it wants a token, and runs a Ray of its own."""

    def __init__(self, token):
        self.token = token

    def service(self, details):
        said = dict(details.invocation_metadata)

        def answer(request, context):
            if said.get("authorization") != f"Bearer {self.token}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            from ray.core.generated.gcs_service_pb2 import InternalKVGetReply

            facts = {"ray_version": "9.9.9", "python_version": "3.99.0"}
            return InternalKVGetReply(value=json.dumps(facts).encode()).SerializeToString()

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture(scope="module")
def locked():
    token = "0123456789abcdef" * 4
    server = grpc.server(ThreadPoolExecutor(2), handlers=[LockedHead(token)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", token
    server.stop(0).wait(DEADLINE_S)


@pytest.mark.parametrize(
    ("mode", "has", "says"),
    [
        (None, None, "wants Ray's token"),
        ("token", None, "there is no token of Ray's here"),
        ("token", "wrong", "wants Ray's token"),
        ("disabled", "right", "wants Ray's token"),
        (None, "right", "runs Ray 9.9.9 with Python 3.99.0"),  # it is taken where nobody said otherwise
        ("token", "right", "runs Ray 9.9.9 with Python 3.99.0"),
    ],
)
def test_a_cluster_that_wants_a_token(locked, tmp_path, mode, has, says):
    """Each way to lack it is told with how to get it; the right one opens the door."""
    address, token = locked
    (tmp_path / ".ray").mkdir()
    if has:
        (tmp_path / ".ray" / "auth_token").write_text(token if has == "right" else "f" * 64)
    environment = {"HOME": str(tmp_path), **({"RAY_AUTH_MODE": mode} if mode else {})}
    ran = command(tmp_path, "status", "--address", address, **environment)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert says in ran.stderr
    assert ("ray get-auth-token" in ran.stderr) == ("token" in says)
    assert token not in ran.stderr


def test_a_question_that_hangs_is_given_up():
    """Whatever Ray waits for."""
    hangs = threading.Event()
    connection = connect.Connection(address="here:1")
    try:
        with pytest.raises(UnreachableError, match="did not answer within"):
            connection.run(hangs.wait, deadline_s=0.05)
    finally:
        hangs.set()
    assert connection.run(lambda: 7, deadline_s=10) == 7


@pytest.mark.parametrize(
    ("why", "was", "came"),
    [
        ("", {}, "installed"),
        ("", {"version": "2"}, "there"),
        ("", {"version": "1"}, "replaced"),
        ("dead", {"version": "2"}, "failed"),
    ],
)
def test_what_came_of_an_installation(why, was, came):
    """From what was there before and what is there now."""
    assert what_came("2", why, was) == came


# -- screens


def shown(said, width, **console):
    screen = Console(width=width, highlight=False, markup=False, emoji=False, **console)
    with screen.capture() as captured:
        screen.print(whole(view(said, address="10.0.0.1:6379"), width))
    return captured.get()


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("said", [answers(), answers(1, 0), troubled(), troubled(100, 1_000)])
def test_the_status_fits(said, width):
    """No line is wider than the terminal, with and without colour."""
    for colour in (None, "truecolor"):
        text = shown(said, width, color_system=colour, force_terminal=colour is not None)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        assert max(map(len, plain.splitlines())) <= width
        assert ("\x1b" in text) == (colour is not None)


def test_the_status_tells_every_trouble():
    """Nothing that somebody must know is left to --json."""
    text = " ".join(shown(troubled(), 160, color_system=None).split())
    for expected in (
        "1 dead 1 quarantined 1 draining",
        "3 faults of this node within 15 min",
        "42 s left",
        "no answer within 5 s",
        "1 frozen",
        "stalled 31%",
        "not serving",
        "GPU 3 fell off the bus",
        "10%",
        "restart for ever: abababab",
        "not known: jobs: RpcError: deadline",
        "1 node has no agent: rayguard up",
    ):
        assert expected in text


def test_a_thousand_processes_are_shown_by_class():
    """And a few by themselves."""
    assert "Worker3" in shown(answers(2, 8), 100)
    assert " 1003 " in shown(answers(2, 8), 100)
    text = shown(answers(10, 1_000), 100)
    assert " 1003 " not in text.split("engine")[0]
    assert re.search(r"Worker3\s+01000000\s+14[23]\s+all\s+10\s", text)


def test_plain_lines_say_everything_once_and_nothing_that_a_terminal_obeys():
    """For grep; a line for each thing."""
    said = troubled()
    evil = "evil\x1b[2J\nname\u202e"
    said["agents"][node_id(3)]["readings"] = readings([a_worker(77, evil)])
    said["supervisors"]["01000000"]["state"]["stories"] = [a_story(sentence=f"{evil} broke")]
    found = list(lines(view(said)))
    assert not any(bad in line for line in found for bad in ("\x1b", "\n", "\u202e"))
    assert sum(line.startswith("node ") for line in found) == 7
    (frozen,) = [line for line in found if "state=frozen" in line]
    assert "pid=1000 " in frozen
    assert "job 01000000 state=running plugin=on supervisor=up budget_left=10% open_stories=1" in found


def test_what_up_tells_of_jobs_and_nodes_holds_nothing_that_a_terminal_obeys(capsys):
    """What a job is started with is its user's own text."""
    evil = "evil\x1b[2J\x07\nname\u202e"
    node = {"host": evil, "node_id": node_id(0), "what": "failed", "why": evil, "plugin": True}
    job = {"id": "01000000", "entrypoint": evil, "plugin": False}
    _tell_installed({"nodes": [node], "jobs": [job], "discovery": "/tmp/ray/found.json"})
    said = capsys.readouterr().out
    assert not any(bad in said for bad in ("\x1b", "\x07", "\u202e"))
    assert "evil" in said
    assert not any(line.startswith("name") for line in said.splitlines())
