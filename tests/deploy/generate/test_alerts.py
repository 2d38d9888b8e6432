"""The alerts: each fires on its symptom and stays silent otherwise, by promtool; each has its runbook."""

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.generate.alerts import alert
from deploy.generate.alerts.alert import Severity
from deploy.generate.alerts.job_alerts import alerts
from deploy.generate.queries import sooner

ROOT = Path(__file__).parents[3]
RUNBOOKS = ROOT / "docs" / "runbooks"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool comes with Debian's package `prometheus`"
)
SECTIONS = ("## What it means", "## Look", "## Do", "## When it is no fault")


def promtool(*arguments, cwd):
    return subprocess.run(
        [PROMTOOL, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def written(folder, those, document=None):
    """Write alerts and their unit tests into ``folder``."""
    files = {"a.yml": document or alert.document(those), "t.yml": alert.unit_tests(those, ("a.yml",))}
    for name, content in files.items():
        (folder / name).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return folder


@needs_promtool
def test_each_fires_on_its_symptom_and_stays_silent_otherwise():
    """With the labels and words that a person gets; and an example of a configuration. As they lie in ``deploy/``."""
    folder = ROOT / "deploy" / "prometheus"
    for arguments in (
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rayguard.rules.yml", "rayguard.alerts.yml"),
        ("test", "rules", "rayguard.alerts.test.yml"),
    ):
        ran = promtool(*arguments, cwd=folder)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@needs_promtool
@pytest.mark.parametrize(("expr", "verb"), [("vector(1) > 1", "fires"), ("vector(1)", "stays silent")])
def test_the_unit_tests_would_see_an_alert_that_never_or_always_fires(expr, verb, tmp_path):
    """Each of them can fail, both ways."""
    broken = tuple(dataclasses.replace(one, expr=expr) for one in alerts())
    ran = promtool("test", "rules", "t.yml", cwd=written(tmp_path, broken))
    assert ran.returncode == 1
    assert all(f"name: {one.name} {verb}," in ran.stdout + ran.stderr for one in broken)


@needs_promtool
def test_prometheus_takes_them_sixty_times_as_fast(tmp_path):
    """As the check on a live cluster loads them."""
    folder = written(tmp_path, alerts(), sooner(alert.document(alerts()), 60))
    assert promtool("check", "rules", "a.yml", cwd=folder).returncode == 0


def test_they_page_for_symptoms_and_each_once():
    """A name each; some wake a person, and not all do."""
    names = [one.name for one in alerts()]
    assert len(set(names)) == len(names) >= 8
    assert {one.severity for one in alerts()} == set(Severity)


@pytest.mark.parametrize("one", alerts(), ids=lambda one: one.name)
def test_each_says_what_a_person_needs(one):
    """A summary of one line, a description of sentences, a runbook; tests both ways."""
    told = one.annotations("https://wiki.example/docs")
    assert one.name.startswith("Rayguard")
    assert not told["summary"].endswith(".")
    assert told["description"].endswith(".")
    assert told["runbook_url"] == f"https://wiki.example/docs/runbooks/{one.slug}.md"
    assert one.fires.labels is not None
    assert one.silent
    assert all(case.labels is None for case in one.silent)
    assert re.fullmatch(r"\d+m", one.wait)


@pytest.mark.parametrize("one", alerts(), ids=lambda one: one.name)
def test_each_has_a_runbook(one):
    """What it means, where to look, what to do, when it is none; links lead somewhere."""
    page = (RUNBOOKS / f"{one.slug}.md").read_text(encoding="utf-8")
    places = [page.index(f"{section}\n\n") for section in SECTIONS]
    assert places == sorted(places)
    assert all(len(part.strip()) > 12 for part in re.split("|".join(SECTIONS), page)[1:])
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page):
        assert (RUNBOOKS / link).exists(), link


def test_there_is_no_runbook_of_nothing():
    """A page of an alert that went would send a person astray."""
    pages = {path.stem for path in RUNBOOKS.glob("*.md")}
    assert pages == {one.slug for one in alerts()} | {"README"}


def test_a_gauge_that_dies_with_its_process_does_not_make_an_alert_flap():
    """Each gauge of a process is asked for with what it was lately, and not only now."""
    for one in alerts():
        bare = re.sub(r"\w+_over_time\([^)]*\)", "", one.expr)
        bare = re.sub(r"(increase|rate)\([^)]*\)|\S+ unless \S+ offset \w+", "", bare)
        assert not re.search(r"\brayguard_(?!job:|instance:)\w+", bare), one.name
