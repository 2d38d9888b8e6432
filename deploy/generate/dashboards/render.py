"""A board in Grafana's words, by its own SDK: the one file that knows it, and no job needs it."""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as models

from deploy.generate.alerts.alert import DOCS_URL
from deploy.generate.dashboards.board import Board, Colour, Draw, Panel, Query
from rayguard.metrics.node.discovery import JOB as SCRAPE
from rayguard.metrics.sources import known

TAG = "rayguard"
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_NEWEST = "lastNotNull"
_FIRING = 'ALERTS{alertname=~"Rayguard.*", alertstate="firing"}'


def render(board: Board, docs_url: str = DOCS_URL) -> str:
    """Return the dashboard as JSON, to be provisioned or imported by hand."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags([TAG])
        .time("now-3h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(_to_the_others())
        .annotation(_alerts_as_marks())
    )
    for variable in _variables():
        built = built.with_variable(variable)
    for row in board.rows:
        built = built.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            built = built.with_panel(_panel(panel, docs_url))
    encoded = json.loads(json.dumps(built.build(), cls=JSONEncoder))
    for number, panel in enumerate(encoded["panels"], start=1):
        panel["id"] = number  # links to one panel and its alerts' pictures go by it
    return json.dumps(encoded, indent=2, sort_keys=True) + "\n"


def _panel(panel: Panel, docs_url: str) -> Any:
    built = _drawn(panel)
    built = (
        built.title(panel.title)
        .description(panel.about)
        .datasource(SOURCE)
        .unit(panel.unit.value)
        .thresholds(_thresholds(panel))
        .span(panel.width)
        .height(panel.height)
    )
    if panel.runbook:
        url = f"{docs_url}/runbooks/{panel.runbook}.md"
        built = built.links([dashboard.DashboardLink("Runbook").type(models.DashboardLinkType.LINK).url(url)])
    for letter, query in zip("ABCDEF", panel.queries, strict=False):
        built = built.with_target(_target(letter, query, instant=panel.instant))
        if overrides := _overrides(query):
            built = built.override_by_query(letter, overrides)
    for name, colour in panel.names:
        built = built.override_by_name(name, [_fixed(colour)])
    return built


def _overrides(query: Query) -> list[models.DynamicConfigValue]:
    unit = [models.DynamicConfigValue("unit", query.unit.value)] if query.unit else []
    return unit + ([_fixed(query.colour)] if query.colour else [])


def _fixed(colour: Colour) -> models.DynamicConfigValue:
    return models.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour.value})


def _drawn(panel: Panel) -> Any:
    newest = common.ReduceDataOptions().calcs([_NEWEST]).values(values=False)
    by_value = dashboard.FieldColor().mode(models.FieldColorModeId.THRESHOLDS)
    if panel.draw is Draw.NUMBER:
        number = stat.Panel().reduce_options(newest).graph_mode(looks.BigValueGraphMode.NONE)
        return number.color_mode(looks.BigValueColorMode.VALUE).color_scheme(by_value)
    if panel.draw is Draw.BARS:
        bars = bargauge.Panel().reduce_options(newest).display_mode(looks.BarGaugeDisplayMode.BASIC)
        bars = bars.orientation(looks.VizOrientation.HORIZONTAL).color_scheme(by_value).min(0)
        return bars.decimals(0)  # `increase` reckons with the edges of its window: 2.01 deaths
    return _lanes(by_value) if panel.draw is Draw.TIMELINE else _curves(panel)


def _lanes(by_value: Any) -> Any:
    lanes = statetimeline.Panel().color_scheme(by_value).show_value(looks.VisibilityMode.NEVER)
    return (
        lanes.fill_opacity(80)
        .row_height(0.8)
        .legend(common.VizLegendOptions().show_legend(show_legend=False))
    )


def _curves(panel: Panel) -> Any:
    legend = common.VizLegendOptions().display_mode(looks.LegendDisplayMode.LIST).calcs([_NEWEST])
    lines = (
        timeseries.Panel()
        .legend(legend.placement(looks.LegendPlacement.BOTTOM).show_legend(show_legend=True))
        .tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI))
        .line_width(2)
        .fill_opacity(10)
        .axis_soft_min(0)
        .axis_soft_max(panel.axis_top)
    )
    if panel.steps:
        dashed = common.GraphThresholdsStyleConfig().mode(looks.GraphTresholdsStyleMode.DASHED)
        lines = lines.thresholds_style(dashed)
    if panel.draw is Draw.STACK:  # no lines: that of a 0 would lie on all that is below it
        stack = common.StackingConfig().mode(looks.StackingMode.NORMAL)
        return lines.line_width(0).fill_opacity(70).stacking(stack)
    return lines


def _thresholds(panel: Panel) -> Any:
    steps = [models.Threshold(None, panel.colour.value)]
    steps += [models.Threshold(float(value), colour.value) for value, colour in panel.steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _target(letter: str, query: Query, *, instant: bool) -> Any:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter)
    return target.instant() if instant else target.range()


def _variables() -> list[Any]:
    assert "rayguard_job_wall_seconds_total" in known()
    return [
        dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"),
        _choice("ray_job", "Job", "label_values(rayguard_job_wall_seconds_total, ray_job)"),
        _choice("instance", "Node", f'label_values(up{{job="{SCRAPE}"}}, instance)'),
    ]


def _choice(name: str, label: str, query: str) -> Any:
    """One or many; all of them also takes what belongs to none, as the numbers of an agent to no job."""
    every = models.VariableOption(selected=True, text="All", value="$__all")
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(SOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
        .current(every)
    )


def _to_the_others() -> Any:
    others = dashboard.DashboardLink("rayguard").type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    return others.keep_time(keep_time=True).include_vars(include_vars=True)


def _alerts_as_marks() -> Any:
    marks = dashboard.AnnotationQuery().name("Alerts").datasource(SOURCE).expr(_FIRING)
    return marks.enable(enable=True).icon_color("red")
