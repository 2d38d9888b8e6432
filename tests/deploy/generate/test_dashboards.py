"""The dashboards: complete, as Grafana's own models have them, and what is committed is what is generated."""

import json
import re
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from deploy.generate.__main__ import main
from deploy.generate.alerts.job_alerts import alerts
from deploy.generate.alerts.promql import JOB, NODE, or_zero
from deploy.generate.dashboards.board import Draw
from deploy.generate.dashboards.boards import boards
from deploy.generate.dashboards.render import render
from deploy.generate.files import BY_HAND, files
from deploy.generate.queries import measured, panel_questions
from rayguard.metrics.instruments.pool_tally import PoolEngineState

ROOT = Path(__file__).parents[3]
each_board = pytest.mark.parametrize("board", boards(), ids=lambda one: one.uid)


def test_what_is_committed_is_what_is_generated():
    """After a change: ``python -m deploy.generate``."""
    generated = files(ROOT)
    assert [
        name for name, text in generated.items() if (ROOT / name).read_text(encoding="utf-8") != text
    ] == []
    boards_there = {
        f"deploy/grafana/dashboards/{path.name}" for path in (ROOT / "deploy/grafana/dashboards").iterdir()
    }
    assert boards_there <= set(generated)


def test_the_command_writes_them_and_keeps_what_was_written_by_hand(tmp_path):
    """With the address at which the runbooks are read."""
    main([str(tmp_path)])
    page = tmp_path / "docs/runbooks/crash-loop.md"
    page.write_text(f"old\n{BY_HAND}\n\nmine\n", encoding="utf-8")
    main([str(tmp_path), "--docs-url", "https://wiki.example/"])
    assert page.read_text(encoding="utf-8").startswith("# RayguardCrashLoop\n")
    assert page.read_text(encoding="utf-8").endswith(f"{BY_HAND}\n\nmine\n")
    for name in ("deploy/prometheus/rayguard.alerts.yml", "deploy/grafana/dashboards/rayguard-overview.json"):
        assert "https://wiki.example/runbooks/crash-loop.md" in (tmp_path / name).read_text(encoding="utf-8")


def test_there_is_enough_to_see():
    """Four dashboards; the first one answers the questions of 3 a.m."""
    assert len({one.uid for one in boards()}) == len(boards()) == 4
    assert sum(len(one.panels) for one in boards()) >= 20
    assert [row.title for row in boards()[0].rows] == [
        "Is the job healthy?",
        "What broke?",
        "What was done?",
        "What does it cost?",
    ]


@each_board
def test_each_panel_says_what_it_is(board):
    """A title of its own, a description in sentences, a name for each series, a runbook that exists."""
    titles = [panel.title for panel in board.panels]
    assert len(set(titles)) == len(titles)
    runbooks = {one.slug for one in alerts()}
    for panel in board.panels:
        assert panel.about.endswith("."), panel.title
        assert 1 <= len(panel.queries) <= 6, panel.title
        assert all(query.legend for query in panel.queries), panel.title
        assert panel.runbook in runbooks | {""}, panel.title


@each_board
def test_legends_name_labels_that_the_query_keeps(board):
    """``{{pool}}`` of a sum over pools would print nothing."""
    for panel in board.panels:
        for query in panel.queries:
            for label in re.findall(r"{{(\w+)}}", query.legend):
                assert re.search(rf"by \([^)]*\b{label}\b", query.expr) or query.expr.startswith("up{"), (
                    panel.title
                )


@each_board
def test_panels_fill_their_rows(board):
    """Grafana's grid is 24 wide: a row of panels ends there, and nothing lies on something else."""
    cells = set()
    for panel in json.loads(render(board))["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells, panel["title"]
        cells |= mine
    for row in board.rows:
        assert sum(panel.width for panel in row.panels) % 24 == 0, row.title


@each_board
def test_each_dashboard_is_one_by_grafanas_own_models(board):
    """Read and written again it is the same: no key that Grafana's schema does not know."""
    made = json.loads(render(board))
    again = json.loads(json.dumps(models.Dashboard.from_json(made), cls=JSONEncoder))
    assert again == made
    assert [one["name"] for one in made["templating"]["list"]] == ["datasource", "ray_job", "instance"]
    ids = [panel["id"] for panel in made["panels"]]
    assert ids == list(range(1, len(ids) + 1))


@each_board
def test_each_panel_follows_the_chosen_job_and_node(board):
    """All queries, but those for the alerts, which belong to everything."""
    for panel in board.panels:
        for query in panel.queries:
            chosen = re.findall(r"\$(ray_job|instance)\b", query.expr)
            assert chosen or "ALERTS" in query.expr, panel.title
    assert set(JOB) | set(NODE) == {"ray_job", "instance"}


def test_a_number_is_asked_once_and_a_curve_over_time():
    """A stat over a range query would load thousands of points to show one."""
    for board in boards():
        for made, panel in zip(
            [one for one in json.loads(render(board))["panels"] if one["type"] != "row"],
            board.panels,
            strict=True,
        ):
            assert {target["instant"] for target in made["targets"]} == {
                panel.draw in (Draw.NUMBER, Draw.BARS)
            }
            spans = "$__range" if panel.instant else "$__rate_interval"
            other = "$__rate_interval" if panel.instant else "$__range"
            assert other not in json.dumps(made["targets"]), (panel.title, spans)


def test_grafana_finds_everything_when_it_starts():
    """The provisioning names the source of data and the folder of the dashboards."""
    [source] = yaml.safe_load(files(ROOT)["deploy/grafana/provisioning/datasources/rayguard.yaml"])[
        "datasources"
    ]
    [provider] = yaml.safe_load(files(ROOT)["deploy/grafana/provisioning/dashboards/rayguard.yaml"])[
        "providers"
    ]
    assert (source["type"], source["url"]) == ("prometheus", "$RAYGUARD_PROMETHEUS_URL")
    assert provider["options"]["path"].endswith("/rayguard")


def test_zero_is_drawn_for_what_is_not_there_only_where_it_means_zero():
    """Memory, disks, nodes and budgets that nobody measured are not 0: such panels stay empty and say so."""
    measured = re.compile(
        r"(_ratio|_limit_bytes|_size_bytes|_free_bytes|rayguard_nodes|rayguard_agents|_wall_)"
    )
    for one in panel_questions():
        if "vector(0)" in one.expr and "device" not in one.expr:
            assert not measured.search(one.expr), one.name


def test_a_zero_for_series_with_labels_has_a_name_and_stands_alone():
    """Without: a bar ``(): 0`` beside the real ones, a line that Grafana calls "Value"."""
    for board in boards():
        for panel in board.panels:
            for query in panel.queries:
                labels = set(re.findall(r"{{(\w+)}}", query.legend))
                if labels and "vector(0)" in query.expr:
                    named = set(re.findall(r', "(\w+)", "[^"]+", "", ""\)', query.expr))
                    assert " or on () label_replace(" in query.expr, panel.title
                    assert named, panel.title
                    assert named <= labels, panel.title


def test_the_zero_can_be_taken_from_a_query_again():
    """Whoever asks whether something was measured asks without it."""
    assert all("vector(0)" not in measured(one.expr) for one in panel_questions())
    for zero in ({}, {"kind": "none"}, {"kind": "none", "scope": "so far"}):
        assert measured(or_zero("sum(up)", **zero)) == "sum(up)"


@each_board
def test_curves_show_their_steps_and_a_flat_zero_is_a_line_near_the_bottom(board):
    """Grafana's own axis of a flat 0 goes to 100, and that of 30 % of memory ends below the alarm at 90 %."""
    for made, panel in zip(
        [one for one in json.loads(render(board))["panels"] if one["type"] != "row"],
        board.panels,
        strict=True,
    ):
        if made["type"] == "timeseries":
            custom = made["fieldConfig"]["defaults"]["custom"]
            assert custom["axisSoftMin"] == 0 < custom["axisSoftMax"], panel.title
            assert all(value <= custom["axisSoftMax"] for value, _ in panel.steps), panel.title
            assert made["options"]["legend"]["calcs"] == ["lastNotNull"], panel.title


@each_board
def test_a_number_in_another_unit_is_not_coloured_by_the_steps_of_the_panel(board):
    """15 GiB of headroom are above 0.2, whatever share of the node that is."""
    for panel in board.panels:
        for query in panel.queries:
            if panel.draw is Draw.NUMBER and query.unit not in (None, panel.unit):
                assert query.colour or panel.title == "Foreseen to run out", panel.title


def test_states_have_colours_of_their_own():
    """Red is lost wherever it is: not the fourth series by the alphabet."""
    [made] = [
        one
        for one in json.loads(render(boards()[1]))["panels"]
        if one["title"] == "Engines of pools by state"
    ]
    colours = {
        one["matcher"]["options"]: one["properties"][0]["value"]["fixedColor"]
        for one in made["fieldConfig"]["overrides"]
    }
    assert {state.value for state in PoolEngineState} == set(colours)
    assert (colours["serving"], colours["lost"]) == ("green", "red")


def test_bars_count_whole_things():
    """``increase`` says 2.01 deaths."""
    made = [one for board in boards() for one in json.loads(render(board))["panels"]]
    decimals = {one["fieldConfig"]["defaults"].get("decimals") for one in made if one["type"] == "bargauge"}
    assert decimals == {0}
