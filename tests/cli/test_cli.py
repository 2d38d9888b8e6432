"""The ``rayguard`` command, run as people and scripts run it: in a process of its own."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from importlib.metadata import version

import pytest
from pseudo_terminal import on_a_terminal
from typer.testing import CliRunner

from rayguard.cli import plain_form
from rayguard.cli.app import app
from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.journal import Journal
from rayguard.recovery.status import StatusPage, Who
from rayguard.recovery.tally import Tally

DEADLINE_S = 60
NO_CLUSTER = {"RAY_ADDRESS": "", "RAY_TMPDIR": "/nonexistent"}  # whatever else runs on this machine
CAUSE = (
    "builtins.AssertionError: scheduler [bold]lost[/bold] \x1b[31mits mind\x1b[0m (sched.py:12) " + "x" * 400
)


def command(home, *arguments, **environment):
    """Run the command; the environment is clean but for what a test sets."""
    clean = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("RAYGUARD_") and k not in ("FORCE_COLOR", "COLUMNS")
    }
    return subprocess.run(
        [sys.executable, "-m", "rayguard", *arguments],
        env={**clean, "RAYGUARD_HOME": str(home), **NO_CLUSTER, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def shown_at(home, *arguments, columns=100):
    """Run the command on a terminal; return its exit code and what it showed, without colours."""
    code, shown = on_a_terminal(*arguments, columns=columns, RAYGUARD_HOME=str(home), **NO_CLUSTER)
    return code, re.sub(r"\x1b\[[0-9;]*m", "", shown)


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def journal(home):
    journal = Journal(home)
    journal.write(
        Incident(
            id="aaaa1111",
            kind="scheduler_assertion",
            scope="engine",
            cause=CAUSE,
            evidence=("EngineCore traceback\nframe one\nframe two",),
            consequences=("EngineDeadError in generate",),
            advice="Turn chunked prefill off.",
            target="Rollout",
            detected_at=1_700_000_000.0,
            detect_s=0.02,
            recover_s=2.5,
            remedy="restart_engine+chunked_prefill_off",
            settings=("chunked_prefill_off",),
            requests=4,
            tokens_saved=310,
            tokens_lost=5,
            outcome=Outcome.RECOVERED,
            notes=("seen on two engines",),
        )
    )
    journal.write(
        Incident(
            id="aaaa2222", kind="engine_hang", scope="engine", cause="silence", detected_at=1_700_000_100.0
        )
    )
    journal.write(
        Incident(id="bbbb3333", kind="host_oom", scope="process", cause="killed", detected_at=1_700_000_200.0)
    )
    return journal


@pytest.fixture
def page(home):
    tally = Tally()
    engine = tally.engine("rollout-0")
    engine.epoch, engine.rung, engine.settings, engine.serving = 2, 1, ("chunked_prefill_off",), True
    engine.weight_version, engine.requests_running, engine.tokens_generated, engine.restarts = (
        "17",
        3,
        123_456,
        2,
    )
    tally.last_incident = "aaaa1111"
    assert StatusPage(home, Who(actor_class="Rollout", incarnation=1), tally=tally).publish()


def test_incidents_are_plain_lines_for_a_pipe(home, journal):
    """One line each, oldest first, with nothing that a terminal would obey."""
    ran = command(home, "incidents")
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0
    assert [line.split()[1] for line in lines] == ["aaaa1111", "aaaa2222", "bbbb3333"]
    assert (
        "scheduler_assertion (engine) in Rollout: builtins.AssertionError: scheduler [bold]lost[/bold]"
        in lines[0]
    )
    assert "restart_engine+chunked_prefill_off: recovered in 2.5 s" in lines[0]
    assert "\x1b" not in ran.stdout


@pytest.mark.parametrize("columns", [100, 200, 80])
@pytest.mark.parametrize("what", ["incidents", "status"])
def test_tables_fit_a_terminal(home, journal, page, what, columns):
    """At most 100 columns, less where there are less; what matters is in them."""
    code, shown = shown_at(home, what, columns=columns)
    assert code == 0
    assert max(len(line.rstrip("\r")) for line in shown.split("\n")) <= min(columns, 100)
    if columns < 100:  # cells may be cut in two there
        return
    squeezed = "".join(shown.split())
    wanted = {
        "incidents": [
            "aaaa1111",
            "scheduler_assertion(engine)inRollout",
            "[bold]lost[/bold]itsmind",
            "recovered",
        ],
        "status": ["Rollout", str(os.getpid()), "rollout-0", "alive", "chunked_prefill_off", "123456", "17"],
    }[what]
    assert [word for word in wanted if word not in squeezed] == []


@pytest.fixture
def switched_off(monkeypatch):
    """A process whose Ray is another one."""
    why = "Ray 2.61 moved ray._private.worker.Worker.put_object"
    monkeypatch.setattr("rayguard.recovery.status.switched_off", lambda: {"object scopes": why})
    return why


def test_what_rays_changes_switched_off_is_shown(home, switched_off, page):
    """By name, with the reason and the process; in JSON, too."""
    assert f"object scopes: off, {switched_off} (pid {os.getpid()})" in command(home, "status").stdout
    _, shown = shown_at(home, "status", columns=100)
    assert f"objectscopes:off,{switched_off}(pid".replace(" ", "") in "".join(shown.split())
    (found,) = json.loads(command(home, "status", "--json").stdout)
    assert found["off"] == {"object scopes": switched_off}


@pytest.mark.parametrize("how", [["aaaa1111"], ["--id", "aaaa1111"], ["aaaa11"]])
def test_one_incident_is_shown_whole(home, journal, how):
    """By id, by option, by the beginning of the id: evidence, consequences, advice."""
    ran = command(home, "incidents", *how)
    assert ran.returncode == 0
    for expected in (
        "scheduler_assertion (engine) in Rollout",
        "frame two",
        "EngineDeadError in generate",
        "Turn chunked prefill off.",
        "310 saved, 5 lost",
        "seen on two engines",
        "x" * 400,
    ):
        assert expected in ran.stdout
    assert "\x1b" not in ran.stdout


@pytest.mark.parametrize(("wanted", "says"), [("aaaa", "several"), ("zzzz", "no incident")])
def test_an_id_that_names_no_single_incident_is_an_error(home, journal, wanted, says):
    """Exit code 1, and where it looked."""
    ran = command(home, "incidents", wanted)
    assert ran.returncode == 1
    assert says in ran.stderr
    assert str(home) in ran.stderr
    assert ran.stdout == ""


def test_json_is_the_list_of_incidents(home, journal):
    """For jq; the inverse of ``from_json``."""
    ran = command(home, "incidents", "--json")
    assert [Incident.from_json(one) for one in json.loads(ran.stdout)] == journal.read()
    assert json.loads(command(home, "incidents", "--json", "--id", "bbbb").stdout)[0]["kind"] == "host_oom"


def test_last_and_kind_choose(home, journal):
    """The newest of one kind."""
    assert [one["id"] for one in json.loads(command(home, "incidents", "--json", "--last", "2").stdout)] == [
        "aaaa2222",
        "bbbb3333",
    ]
    chosen = json.loads(command(home, "incidents", "--json", "--kind", "engine_hang", "--last", "5").stdout)
    assert [one["id"] for one in chosen] == ["aaaa2222"]


def test_home_beats_the_environment(journal, home, tmp_path):
    """Argument, then environment."""
    ran = command(tmp_path / "elsewhere", "incidents", "--json", "--home", str(home))
    assert len(json.loads(ran.stdout)) == 3


@pytest.mark.parametrize(("what", "place"), [("incidents", ""), ("status", "status")])
def test_nothing_to_show_says_where_it_looked(home, what, place):
    """That is no error, and makes no directory."""
    ran = command(home, what)
    assert ran.returncode == 0
    assert str(home / place) in ran.stdout
    assert json.loads(command(home, what, "--json").stdout) == []
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["incidents", "--kind", "engine_hnag"], "engine_hang"),
        (["incidents", "--last", "0"], "--last"),
        (["incidents", "--last", "x"], "--last"),
        (["incidents", "--follow", "aaaa"], "--follow"),
        (["incidents", "--nothing"], "--nothing"),
        (["nothing"], "nothing"),
        ([], "incidents"),
    ],
)
def test_bad_usage_is_exit_code_2(home, arguments, says):
    """With the word that was wrong, and no traceback."""
    ran = command(home, *arguments)
    assert ran.returncode == 2
    assert says in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_bad_setting_is_named(home):
    """Exit code 2: it is the user's to correct."""
    ran = command(home, "incidents", RAYGUARD_JOURNAL_KEEP="many")
    assert ran.returncode == 2
    assert "RAYGUARD_JOURNAL_KEEP is 'many'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_place_that_cannot_be_read_is_said(tmp_path):
    """Exit code 1 and the reason."""
    (tmp_path / "file").write_text("")
    ran = command(tmp_path / "file", "incidents")
    assert ran.returncode == 1
    assert "Not a directory" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_torn_lines_are_mentioned(home, journal):
    """On the error stream, so that JSON stays JSON."""
    with (home / "incidents.jsonl").open("ab") as file:
        file.write(b'{"id": "to')
    ran = command(home, "incidents", "--json")
    assert len(json.loads(ran.stdout)) == 3
    assert "1 line of the journal was skipped" in ran.stderr


def test_a_closed_pipe_is_no_traceback(home, journal):
    """``rayguard incidents | head -1``."""
    for n in range(300):
        assert journal.write(Incident(id=f"{n}", kind="host_oom", scope="process", cause="x" * 1_000))
    ran = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m rayguard incidents --home {home} | head -c 1"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert "Traceback" not in ran.stderr


def test_status_is_plain_lines_for_a_pipe(home, page):
    """Everything about an engine in one line; JSON has the same."""
    (line,) = command(home, "status").stdout.splitlines()
    assert line.startswith(
        f"Rollout pid={os.getpid()} alive incarnation=1 engine=rollout-0 serving epoch=2 rung=1"
    )
    assert "settings=chunked_prefill_off weights=17 running=3 tokens=123456 last_incident=aaaa1111" in line
    (seen,) = json.loads(command(home, "status", "--json").stdout)
    assert (seen["pid"], seen["alive"], seen["engines"][0]["tokens_generated"]) == (
        os.getpid(),
        True,
        123_456,
    )


def test_follow_shows_what_comes(home, journal):
    """First the past, then each record as it is written, by another process; Ctrl-C is a clean end."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "rayguard",
            "incidents",
            "--follow",
            "--last",
            "1",
            "--json",
            "--home",
            str(home),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background lets its children ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    overdue = threading.Timer(DEADLINE_S, process.kill)
    overdue.start()
    try:
        assert json.loads(process.stdout.readline())["id"] == "bbbb3333"
        journal.write(Incident(id="cccc", kind="host_oom", scope="process", cause="again"))
        assert json.loads(process.stdout.readline())["id"] == "cccc"
        journal.write(
            Incident(id="cccc", kind="host_oom", scope="process", cause="again", outcome=Outcome.RECOVERED)
        )
        assert json.loads(process.stdout.readline())["outcome"] == "recovered"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, rest, errors) == (0, "", "")
    finally:
        overdue.cancel()
        process.kill()
        process.wait(DEADLINE_S)


def test_version_and_help(home):
    """``--help`` teaches with examples."""
    assert command(home, "--version").stdout == f"rayguard {version('rayguard')}\n"
    assert "rayguard incidents --last 5" in command(home, "incidents", "--help").stdout
    assert "incidents" in command(home, "--help").stdout


HEAVY = (
    "ray",
    "torch",
    "vllm",
    "numpy",
    "prometheus_client",
    "psutil",
    "pydantic",
    "rich",
    "asyncio",
    "yaml",
)


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (["incidents"], {"typer"}),
        (["incidents", "--json", "--last", "2"], {"typer"}),
        (["incidents", "aaaa1111"], {"typer"}),
        (["incidents", "--stories", "--json"], {"typer"}),
        (["status"], {"typer"}),
        (["status", "--json"], {"typer"}),
        (["--version"], {"typer"}),
        (["--help"], set()),
    ],
)
def test_it_loads_nothing_heavy(home, journal, page, arguments, more):
    """Ray and torch take seconds, each of the others a tenth: somebody is looking for an incident now."""
    code = (
        "import sys\nfrom rayguard.cli import main\n"
        f"sys.argv = ['rayguard', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"heavy = {set(HEAVY) | more!r} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {**os.environ, "RAYGUARD_HOME": str(home), **NO_CLUSTER}
    subprocess.run(
        [sys.executable, "-c", code],
        timeout=DEADLINE_S,
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["incidents"], ["status"]])
def test_it_answers_within_a_few_starts_of_python(home, journal, page, arguments):
    """In processor time, beside a bare Python; 25 to 40 times as much once, 8 to 12 times now."""

    def cost(*words):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environment = {**os.environ, "RAYGUARD_HOME": str(home), **NO_CLUSTER}
        subprocess.run([sys.executable, *words], capture_output=True, check=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    bare = min(cost("-c", "pass") for _ in range(5))
    assert min(cost("-m", "rayguard", *arguments) for _ in range(5)) < 20 * bare


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--help"],
        ["incidents", "--help"],
        ["incidents", "--last", "0"],
        ["incidents", "--last", "x"],
        ["incidents", "--last"],
        ["incidents", "--json", "--follow"],
        ["incidents", "--kind", "engine_hang"],
        ["incidents", "--address", "auto"],
        ["incidents", "--last=3"],
        ["incidents", "a", "b"],
        ["status", "a"],
        ["status", "--address", "auto"],
        ["memory"],
    ],
)
def test_what_is_not_plain_is_left_to_typer(words):
    """It has the words for mistakes."""
    assert plain_form(words) is None


def test_what_is_plain_is_what_typer_would_read(home, journal):
    """In any order."""
    words = ["--home", str(home), "aaaa1111", "--json"]
    assert plain_form(["incidents", *words]) == (
        "incidents",
        {"home": home, "incident": "aaaa1111", "as_json": True},
    )
    typed = CliRunner().invoke(app, ["incidents", *words])
    assert typed.exit_code == 0
    assert typed.stdout == command(home, "incidents", *words).stdout
