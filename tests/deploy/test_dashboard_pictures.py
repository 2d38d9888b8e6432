"""The pictures of the dashboards: Grafana's places, units, legends and clock, and what is empty says so."""

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest

from deploy.generate.dashboards.board import Colour, Draw, Panel, Query, Unit
from deploy.generate.dashboards.boards import boards
from deploy.generate.dashboards.render import render
from tests.benchmarks.cluster.plots import __main__ as stored
from tests.benchmarks.cluster.plots import page
from tests.benchmarks.cluster.plots.answers import Answers, Series
from tests.benchmarks.cluster.plots.legend import Legend
from tests.benchmarks.cluster.plots.look import fitted, readable, width_of

MOMENTS = tuple(1_800_000_000.0 + n for n in range(120))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, Unit.COUNT, "0"),
        (1437.3, Unit.COUNT, "1.44 K"),
        (0.9173, Unit.SHARE, "91.7%"),
        (15.4 * 2**30, Unit.BYTES, "15.4 GiB"),
        (3 * 2**20, Unit.BYTES_RATE, "3 MiB/s"),
        (0.0178, Unit.SECONDS, "17.8 ms"),
        (90, Unit.SECONDS, "1.5 min"),
        (5.25, Unit.REQUESTS, "5.25 req/s"),
        (0.0387, Unit.CORES, "0.0387 cores"),
        (math.nan, Unit.COUNT, "NaN"),
    ],
)
def test_numbers_have_their_units(value, unit, text):
    """As Grafana writes them."""
    assert readable(value, unit) == text


def series(name, *values, unit=Unit.COUNT, colour=None):
    return Series(name=name, unit=unit, colour=colour, values=values)


def texts(canvas):
    from matplotlib.text import Text

    return [one.get_text() for one in canvas.figure.findobj(Text)]


@pytest.fixture
def answering():
    """Answers in which each query has the same series."""

    def made(*found):
        return SimpleNamespace(start=MOMENTS[0], end=MOMENTS[-1], moments=MOMENTS, of=lambda _: list(found))

    return made


@pytest.mark.parametrize("board", boards(), ids=lambda one: one.uid)
def test_panels_and_headings_are_where_grafana_has_them(board, answering):
    """A picture that is ordered otherwise would teach the wrong place."""
    made = json.loads(render(board))["panels"]
    found = page.places(board)
    assert [one.title for one in found] == [one["title"] for one in made]
    assert [(one.box.x, one.box.y, one.box.width, one.box.height) for one in found] == [
        tuple(one["gridPos"][key] for key in "xywh") for one in made
    ]
    written = texts(page.page(board, answering()))
    assert written.count("No data") == len(board.panels)
    assert all(any(row.title in text for text in written) for row in board.rows)


def test_a_picture_is_written_for_each_board(tmp_path, answering, monkeypatch):
    """Into a folder that need not be there; also with series that are all 0, have gaps, or are many."""
    zeros, gaps = (0.0,) * 120, (math.nan,) * 60 + (3.0,) * 60
    many = [series(f"127.0.0.1:{port}", *zeros) for port in range(9000, 9012)]
    monkeypatch.setattr(page, "Answers", lambda *_: answering(series("half", *gaps), *many))
    written = page.draw(SimpleNamespace(url=""), tmp_path / "new")
    assert sorted(path.name for path in written) == [
        "dashboard-engines.png",
        "dashboard-memory.png",
        "dashboard-nodes.png",
        "dashboard-overview.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def drawn(panel, *found):
    from tests.benchmarks.cluster.plots.canvas import Box, Canvas

    canvas = Canvas(500, 300, "black")
    page._DRAWERS[panel.draw](canvas, Box(10, 10, 480, 280), panel, found, MOMENTS)
    return canvas


def test_curves_have_clock_times_a_legend_and_dashed_steps():
    """What the time is when memory goes above the line is what one looks for."""
    panel = Panel(
        title="Memory",
        about="Of nodes.",
        queries=(Query("x", "{{instance}}"),),
        unit=Unit.SHARE,
        steps=((0.8, Colour.ORANGE), (0.9, Colour.RED)),
    )
    canvas = drawn(panel, series("node-1", *(0.3,) * 120, unit=Unit.SHARE))
    written = texts(canvas)
    assert {"node-1", "30%", "0%", "100%"} <= set(written)
    assert sum(text.count(":") == 2 for text in written) >= 2
    axes = canvas.figure.axes[-1]
    assert axes.get_xlim() == (MOMENTS[0], MOMENTS[-1])
    assert [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [0.8, 0.9]


def test_a_flat_zero_is_drawn_on_an_axis_to_one():
    """And not in the middle of one from -0.05 to 0.05."""
    canvas = drawn(
        Panel(title="Waiting", about="Of requests.", queries=(Query("x", "waiting"),)),
        series("waiting", *(0.0,) * 120),
    )
    assert canvas.figure.axes[-1].get_ylim() == (0, 1)


def test_another_unit_has_an_axis_on_the_right():
    """Tokens by the thousand would press calls flat."""
    panel = Panel(title="Progress", about="Of the job.", queries=(Query("x", "calls"),), unit=Unit.REQUESTS)
    canvas = drawn(
        panel,
        series("calls", *(3.0,) * 120, unit=Unit.REQUESTS),
        series("tokens", *(2000.0,) * 120),
    )
    left, right = canvas.figure.axes[-2:]
    assert (left.get_ylim()[1], right.get_ylim()[1]) == (3.0, 2000.0)
    assert right.yaxis.get_ticks_position() == "right"


def test_lanes_are_named_and_coloured_by_value():
    """An alert is a lane that is red while it fires."""
    panel = Panel(
        title="Alerts",
        about="By name.",
        queries=(Query("x", "{{alertname}}"),),
        draw=Draw.TIMELINE,
        steps=((1, Colour.RED),),
    )
    canvas = drawn(panel, series("RayguardAgentGone", *(0.0,) * 60, *(1.0,) * 60))
    assert "RayguardAgentGone" in texts(canvas)
    colours = {tuple(one.get_facecolor()[0][:3].round(2)) for one in canvas.figure.axes[-1].collections}
    assert len(colours) == 2


def test_a_legend_counts_what_it_has_no_room_for():
    """Nothing is written beyond the panel."""
    legend = Legend([series(f"127.0.0.1:{n}", 1.0) for n in range(30)], ["red"] * 30, 250)
    entries = [one for line in legend._lines for one in line]
    shown = [one for one in entries if one.value]
    assert entries[-1].name == f"and {30 - len(shown)} more"
    assert all(one.x + 20 + width_of(one.name, 13) <= 250 for one in entries)
    assert width_of(fitted("rayguard 0.1.0, Ray 2.60.0", 13, 90), 13) <= 90


class FakePrometheus(BaseHTTPRequestHandler):
    """Two agents, scraped from the tenth second on; one counter with a label."""

    def do_POST(self):
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if "start" in asked:
            first = max(float(asked["start"][0]), MOMENTS[10])
            found = [{"metric": {"kind": "a"}, "values": [[first, "1"], [first + 5, "2"]]}]
        else:
            found = [{"metric": {"kind": "b"}, "value": [0, "7"]}]
        body = json.dumps({"data": {"result": found}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


def test_the_window_is_where_there_is_data():
    """From the first scrape to the moment that was asked for; values at their places, gaps between."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakePrometheus)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        answers = Answers(f"http://127.0.0.1:{server.server_port}", MOMENTS[110])
        assert (answers.start, answers.end) == (MOMENTS[10], MOMENTS[110])
        asked = {"title": "t", "about": "A.", "queries": (Query("x", "kind {{kind}}"),)}
        [curve] = answers.of(Panel(**asked))
        [number] = answers.of(Panel(**asked, draw=Draw.NUMBER))
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
    assert (curve.name, curve.values[0], curve.values[5], curve.newest) == ("kind a", 1.0, 2.0, 2.0)
    assert math.isnan(curve.values[1])
    assert (number.name, number.newest) == ("kind b", 7.0)


def test_pictures_can_be_drawn_when_the_run_is_over(tmp_path, monkeypatch):
    """From a copy of what a Prometheus has stored; its own folder is not touched."""
    asked = []

    class Stored:
        def __init__(self, folder, config, *options):
            assert options == ("--query.lookback-delta=10s",)
            assert (folder / "data" / "wal").read_text() == "samples"
            assert "scrape" not in config

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda *_: None  # noqa: E731

        def ask(self, query):
            asked.append(query)
            return [{"value": [0, "1800000100.5"]}]

    monkeypatch.setattr(stored, "Prometheus", Stored)
    monkeypatch.setattr(stored, "draw", lambda _, folder, **window: [folder, window])
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "wal").write_text("samples")
    (tmp_path / "data" / "lock").write_text("")
    folders = [str(tmp_path / "data"), str(tmp_path / "out")]
    assert stored.main(folders) == [tmp_path / "out", {"until": 1_800_000_100.5, "since": None}]
    asked.clear()
    window = ["--since", "2027-01-15T08:00:00+00:00", "--until", "2027-01-15T08:01:00+00:00"]
    assert stored.main([*folders, *window])[1] == {"until": 1_800_000_060.0, "since": 1_800_000_000.0}
    assert not asked
