"""``rayguard diagnose`` and ``rayguard catalog``: what people and scripts get, and the exit codes."""

import gzip
import json
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pseudo_terminal import on_a_terminal
from typer.testing import CliRunner

from rayguard.cli.app import app
from rayguard.cli.logs.answer import RESTART, remedy, spelled, steps, sure
from rayguard.cli.logs.catalog_views import in_words
from rayguard.engine.settings import SAFE_SETTINGS
from rayguard.faults.catalog import default_catalog
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.faults.quote import sentence
from rayguard.logs.report import diagnose_text

DEADLINE_S = 60
CASCADE = """\
(Trainer pid=9) step:12 - actor/entropy_loss:0.4
Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/vllm/v1/core/sched/scheduler.py", line 1407, in schedule
    assert token_budget >= 0
AssertionError
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above).
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
"""
MINE = """
signatures:
- id: mine.wobble
  kind: user_code
  scope: code
  cause: the table wobbled
  advice: put a coaster under it
  confidence: 0.9
  when: {text: wobble detected}
"""
BLIND = ("config_invalid", "batch_indivisible", "user_code", "dependency_mismatch")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("RAYGUARD_") or name in ("FORCE_COLOR", "COLUMNS", "NO_COLOR"):
            monkeypatch.delenv(name)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(CASCADE)
    return path


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    return path


def run(*arguments, **more):
    """Run the command in this process."""
    return CliRunner().invoke(app, [str(one) for one in arguments], prog_name="rayguard", **more)


def terminal(*arguments, columns=80, **environment):
    """Run the command on a terminal; return its exit code and what it showed, colours included."""
    code, shown = on_a_terminal(*arguments, columns=columns, **environment)
    return code, shown.replace("\r", "")


def test_the_cause_comes_first_then_what_to_do(log):
    """One sentence, the advice, the evidence with its line, what followed; plain in a pipe."""
    ran = run("diagnose", log)
    lines = ran.stdout.splitlines()
    assert ran.exit_code == 0
    assert lines[0] == "The scheduler's count of tokens to prefill did not add up."
    assert lines[1].startswith("scheduler_assertion (scope: engine), almost certain")
    order = [lines.index(title) for title in ("What to do", "Evidence", "What followed from it")]
    assert order == sorted(order)
    assert "chunked_prefill_off (enable_chunked_prefill=False)" in ran.stdout
    assert f"  {log}:5" in lines
    assert "assert token_budget >= 0" in ran.stdout
    assert "\x1b" not in ran.stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_gets_colours_and_wrapped_lines(log, columns):
    """At most 100 columns, no blanks at the ends."""
    code, shown = terminal("diagnose", log, columns=columns)
    assert code == 0
    assert "\x1b[1;31m" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, plain)) <= min(columns, 100)
    assert [line for line in plain if line != line.rstrip()] == []


def test_no_color_is_respected(log):
    """https://no-color.org: still bold, no colours."""
    _, shown = terminal("diagnose", log, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", shown)


def test_a_terminal_without_input_is_told_what_to_name():
    """It must not wait for somebody to type a log."""
    code, shown = terminal("diagnose")
    assert code == 2
    assert "rayguard diagnose train.log" in " ".join(re.sub(r"\x1b\[[0-9;]*m|[│\n]", " ", shown).split())


def test_json_is_one_object(log):
    """For scripts: everything, and the remedy in one string."""
    ran = run("diagnose", "--json", log)
    told = json.loads(ran.stdout)
    assert (ran.exit_code, told["kind"], told["scope"]) == (0, "scheduler_assertion", "engine")
    assert told["evidence"][0]["file"] == str(log)
    assert told["evidence"][0]["line"] == 5
    assert told["remedy"].startswith("Restart the engine")
    assert "chunked_prefill_off" in told["cures"]
    assert [one["kind"] for one in told["consequences"]] == ["engine_dead", "actor_died"]
    assert {
        "signature",
        "cause",
        "advice",
        "retry_same_settings",
        "deterministic",
        "poisoned",
        "others",
        "links",
    } <= set(told)


@pytest.mark.parametrize("how", ["-", None])
def test_standard_input_is_read(how):
    """By name, or where nothing is named."""
    ran = run("diagnose", *([how] if how else []), input=CASCADE)
    assert ran.exit_code == 0
    assert "stdin:5" in ran.stdout


@pytest.mark.parametrize(
    "line", ["MyOddError: out of juice", "(W pid=1) gave up: MyOddError at 7", "a.b.MyOddError"]
)
def test_unknown_is_exit_code_3_with_the_telling_lines(tmp_path, line):
    """And how to teach it: what is shown works as it stands."""
    (tmp_path / "log").write_text(f"fine\n{line}\n")
    ran = run("diagnose", tmp_path / "log")
    assert ran.exit_code == 3
    assert line.removeprefix("(W pid=1) ") in ran.stdout
    assert f"{tmp_path / 'log'}:2" in ran.stdout
    assert "rayguard catalog check" in ran.stdout
    lesson = ran.stdout[ran.stdout.index("  # my.yaml") : ran.stdout.index("  rayguard catalog")]
    (tmp_path / "my.yaml").write_text(lesson)
    assert run("catalog", "check", tmp_path / "my.yaml").exit_code == 0
    assert run("diagnose", "--catalog", tmp_path / "my.yaml", tmp_path / "log").exit_code == 0
    assert run("diagnose", input="").exit_code == 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["diagnose", "nowhere.log"], "cannot read nowhere.log"),
        (["diagnose", "--catalog", "nowhere.yaml", "-"], "nowhere.yaml"),
        (["diagnose", "--jsonl", "nowhere.jsonl"], "nowhere.jsonl"),
        (["diagnose", "--jsonl", "-", "train.log"], "--jsonl"),
        (["diagnose", "--nonsense"], "--nonsense"),
        (["catalog", "show", "nonsense.at.all"], "rayguard catalog list"),
        (["catalog", "check", "nowhere.yaml"], "nowhere.yaml"),
        (["catalog", "list", "--kind", "cuda_om"], "cuda_oom"),
    ],
)
def test_bad_usage_is_exit_code_2(arguments, says, monkeypatch):
    """With the word that was wrong."""
    monkeypatch.setenv("COLUMNS", "200")
    ran = run(*arguments)
    assert ran.exit_code == 2
    assert says in ran.stderr
    assert ran.stdout == ""


def test_an_empty_folder_is_bad_usage(tmp_path):
    """There is nothing to be unknown."""
    ran = run("diagnose", tmp_path)
    assert ran.exit_code == 2
    assert "no log" in ran.stderr


def test_a_folder_is_read_and_what_is_left_out_is_said(tmp_path):
    """On the error stream."""
    with gzip.open(tmp_path / "old.log.gz", "wt") as file:
        file.write(CASCADE)
    (tmp_path / "config.yaml").write_text("x: 1\n")
    ran = run("diagnose", "--json", tmp_path)
    assert json.loads(ran.stdout)["evidence"][0]["file"] == str(tmp_path / "old.log.gz")
    assert "left out 1 code or data" in ran.stderr


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_what_is_quoted_holds_no_secret(tmp_path, form):
    """It is pasted into a public thread next."""
    key = "sk-" + "proj-Ab3De5Gh7Jk9Mn1Pq3St5Vw7Yz9Bc1Ef"
    log = tmp_path / "job.log"
    log.write_text(f"Traceback (most recent call last):\nopenai.AuthenticationError: 401 for key {key}\n")
    shown = run("diagnose", *form, log).output
    assert "401 for key [redacted]" in " ".join(shown.split())
    assert key not in shown


def test_jsonl_answers_each_line(tmp_path):
    """In order, with its id; a bad line is answered by its error, and the exit code tells of it."""
    asked = [json.dumps({"id": 7, "text": CASCADE}), "", '{"id": "x"}', "[1]", "{", '{"text": "all is well"}']
    (tmp_path / "in.jsonl").write_text("\n".join(asked))
    ran = run("diagnose", "--jsonl", tmp_path / "in.jsonl")
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert ran.exit_code == 2
    assert [one["id"] for one in told] == [7, "x", None, None, None]
    assert [one.get("kind") for one in told] == ["scheduler_assertion", None, None, None, "unknown"]
    assert ["error" in one for one in told] == [False, True, True, True, False]
    assert "line 3" in told[1]["error"]
    assert told[0]["evidence"] == [
        {"file": "", "line": 5, "quote": told[0]["evidence"][0]["quote"], "kind": "scheduler_assertion"}
    ]
    assert run("diagnose", "--jsonl", "-", input=asked[0]).exit_code == 0


@given(st.lists(st.binary(max_size=200), max_size=4))
@settings(max_examples=40)
def test_jsonl_takes_any_bytes(lines):
    """One answer for each line that is not blank."""
    data = b"\n".join(lines)
    ran = run("diagnose", "--jsonl", "-", input=data)
    asked = [line for line in data.split(b"\n") if line.strip()]
    assert len(ran.stdout.splitlines()) == len(asked)
    assert ran.exit_code == (2 if asked else 0)


@pytest.mark.parametrize(
    "text", ["\ud800 Error: \udfff", "\x1b]0;title\x07RuntimeError: \x9b31m[red]x[/red]\u202e", "\0" * 50]
)
def test_what_is_shown_is_harmless(text, tmp_path):
    """A log cannot move the cursor, colour the report or break it."""
    ran = run("diagnose", "--jsonl", "-", input=json.dumps({"id": text, "text": text}))
    assert json.loads(ran.stdout)["id"] == text
    ran = run("diagnose", input=text.encode("utf-8", "surrogatepass"))
    assert ran.exit_code in (3, 4)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", ran.stdout)


def test_a_closed_pipe_is_no_traceback(log):
    """``rayguard diagnose train.log | head -1``."""
    for arguments in (f"diagnose {log}", "catalog list"):
        ran = subprocess.run(
            ["sh", "-c", f"{sys.executable} -m rayguard {arguments} | head -c 1"],
            capture_output=True, text=True, timeout=DEADLINE_S, check=True,
        )  # fmt: skip
        assert ran.stderr == ""


def test_help_teaches():
    """With examples and the exit codes."""
    shown = run("diagnose", "--help").stdout
    assert "rayguard diagnose train.log" in shown
    assert "Exit code: 0 found, 3 unknown, 4 no failure seen, 2 bad usage." in shown
    assert "rayguard catalog show" in run("catalog", "--help").stdout


@pytest.mark.parametrize("arguments", ["'diagnose', '-'", "'catalog', 'list'"])
def test_it_loads_nothing_heavy(arguments):
    """Ray and torch take seconds; somebody is looking for a cause now."""
    code = (
        "import sys\nfrom rayguard.cli.app import main\n"
        f"sys.argv = ['rayguard', {arguments}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'ray', 'torch', 'vllm', 'numpy', 'prometheus_client', 'psutil'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        input="x",
        text=True,
        timeout=DEADLINE_S,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def test_catalog_list_chooses_a_kind():
    """A line for each in a pipe, a list as JSON."""
    lines = run("catalog", "list", "--kind", "batch_indivisible").stdout.splitlines()
    told = json.loads(run("catalog", "list", "--kind", "batch_indivisible", "--json").stdout)
    assert [line.split("\t")[0] for line in lines] == [one["id"] for one in told]
    assert {one["kind"] for one in told} == {"batch_indivisible"}
    assert len(json.loads(run("catalog", "list", "--json").stdout)) == len(default_catalog().signatures)


@pytest.mark.parametrize("one", default_catalog().signatures, ids=lambda one: one.id)
def test_every_signature_can_be_told_in_words(one):
    """Each condition has its words, none is shown as code; cures are known settings."""
    for when in (*one.when, *one.unless):
        words = list(in_words(when))
        assert words
        assert not any(re.search(r"\b[A-Z]\w+\(\w+=|<\w+\.", word) for word in words if "message" not in word)
    assert set(one.cures) <= set(SAFE_SETTINGS)


def test_catalog_show_tells_everything():
    """Looks, look-alikes, advice, cures, links."""
    shown = run("catalog", "show", "vllm.start.assertion").stdout
    for words in ("What to do", "What it looks like", "AssertionError", "What it is not", "https://"):
        assert words in shown
    assert json.loads(run("catalog", "show", "vllm.start.assertion", "--json").stdout)["is_not"]
    assert "vllm.start.assertion" in run("catalog", "show", "vllm.strat.assertion").stderr


def test_catalog_check_counts_warns_and_refuses(tmp_path, mine):
    """0 with what is in it, a warning for an id of ours, 2 with the key that is wrong."""
    ran = run("catalog", "check", mine)
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert "1 signature, no mistake (user_code 1)" in ran.stdout
    (tmp_path / "ours.yaml").write_text(MINE.replace("mine.wobble", default_catalog().signatures[0].id))
    ran = run("catalog", "check", tmp_path / "ours.yaml")
    assert ran.exit_code == 0
    assert "replaces" in ran.stderr
    for wrong in (MINE.replace("user_code", "usercode"), "nonsense", "signatures: 2024-99-99", "[" * 3_000):
        (tmp_path / "wrong.yaml").write_text(wrong)
        ran = run("catalog", "check", tmp_path / "wrong.yaml")
        assert ran.exit_code == 2
        assert "wrong.yaml" in ran.stderr


def test_a_users_catalog_is_asked_first(mine, monkeypatch):
    """By option or by environment; a broken one is an error here."""
    assert run("diagnose", input="a wobble detected\n").exit_code == 4
    assert "The table wobbled." in run("diagnose", "--catalog", mine, input="a wobble detected\n").stdout
    monkeypatch.setenv("RAYGUARD_CATALOG", str(mine))
    assert (
        json.loads(run("diagnose", "--json", input="a wobble detected\n").stdout)["signature"]
        == "mine.wobble"
    )
    assert run("catalog", "show", "mine.wobble").exit_code == 0
    monkeypatch.setenv("RAYGUARD_CATALOG", "/nowhere.yaml")
    ran = run("diagnose", input="x")
    assert ran.exit_code == 2
    assert "/nowhere.yaml" in ran.stderr


def diagnosis(**fields):
    return Diagnosis(
        **{
            "signature": "x",
            "kind": Kind.ENGINE_DEAD,
            "scope": Scope.ENGINE,
            "cause": "c",
            "confidence": 0.9,
            **fields,
        }
    )


@pytest.mark.parametrize("kind", BLIND)
@pytest.mark.parametrize("scope", list(Scope))
def test_no_blind_restart(kind, scope):
    """What is wrong in the code or the settings is corrected first, whatever the signature says of its scope."""
    told = remedy(diagnosis(kind=Kind(kind), scope=scope))
    assert "Restart" not in told


@pytest.mark.parametrize("scope", [Scope.ENGINE, Scope.PROCESS, Scope.GROUP, Scope.JOB])
def test_what_a_restart_cures_is_restarted(scope):
    """And whether the same settings may be tried again is said."""
    told = steps(diagnosis(scope=scope))
    assert told[0] == RESTART[scope]
    assert "The same settings may be tried again" in told
    assert not any(
        "may be tried again" in one for one in steps(diagnosis(scope=scope, retry_same_settings=False))
    )
    assert any("must end" in one for one in steps(diagnosis(scope=scope, poisoned=True)))


def test_a_broken_node_is_put_right_and_not_its_settings():
    """No setting mends a GPU, or a disk that is full."""
    told = steps(diagnosis(scope=Scope.NODE, retry_same_settings=False, poisoned=True))
    assert told[0] == RESTART[Scope.NODE]
    assert not any("settings" in one for one in told)
    assert told[-1] == "On this node it fails again until that is put right"


def test_words():
    """Sentences begin with a capital where they begin with a word; settings are spelled as vLLM does."""
    assert sentence("keep it off") == "Keep it off"
    assert sentence("vLLM's own check") == "vLLM's own check"
    assert sentence("") == ""
    assert spelled("eager") == "eager (enforce_eager=True)"
    assert all("(" in spelled(name) for name in SAFE_SETTINGS)
    assert [sure(at) for at in (0.99, 0.9, 0.7, 0.5, 0.1)] == [
        "almost certain",
        "very likely",
        "likely",
        "perhaps",
        "a guess",
    ]
    assert remedy(diagnose_text("nothing").diagnosis).startswith("Nothing needs a restart")
    unknown = diagnose_text("OddError: it broke in a way that nobody has met").diagnosis
    assert remedy(unknown).startswith("Find the cause first")


def test_a_person_is_not_shown_hundreds_of_places():
    """The first of them, how many more there are, and where all of them stand."""
    shown = run("catalog", "show", "engine.start.error").stdout
    assert "more (`--json` names all)" in shown
    assert max(map(len, shown.splitlines())) < 2_000
    whole = json.loads(run("catalog", "show", "engine.start.error", "--json").stdout)
    assert len(str(whole)) > len(shown)


def test_every_signature_can_be_shown():
    """Each condition that a signature may have has words for people."""
    for signature in default_catalog().signatures:
        shown = CliRunner().invoke(app, ["catalog", "show", signature.id])
        assert shown.exit_code == 0, signature.id
        assert signature.id in shown.output


def test_a_likeness_is_explained_where_a_signature_is_asked_for():
    """It stands where a signature's id stands in an answer, so people look it up."""
    ran = run("catalog", "show", "likeness.disk_full")
    assert ran.exit_code == 2
    assert "rayguard catalog list --kind disk_full" in ran.stderr
