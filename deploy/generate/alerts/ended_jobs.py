"""Alerts of a job stop with it, though what it counted stays for a day and windows look back for longer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from deploy.generate.alerts.alert import Case
from deploy.generate.alerts.promql import lately, most
from rayguard.metrics.instruments.node import JOB_OVER

if TYPE_CHECKING:
    from deploy.generate.alerts.alert import Alert

_OVER = f'{JOB_OVER}{{ray_job="%s", instance="10.0.0.1:9400"}}'
_JOB, _OTHER = "01000000", "02000000"  # the one that the cases are of, and one beside it


def stops_with_job(alert: Alert) -> Alert:
    """Return an alert of a job that is told only while no node says that the job is over, and its cases.

    Where no node says anything of it, it is told: better once too often.
    """
    over = most(lately(JOB_OVER, "1m"), "ray_job")
    query = f"({alert.expr})" if " or " in alert.expr else alert.expr
    fires = alert.fires
    beside = {_OVER % _JOB: "0x60", _OVER % _OTHER: "1x60"}
    ended = Case(
        series={**fires.series, _OVER % _JOB: f"0x{fires.at - 2} 1x60"},
        at=fires.at,
    )
    return replace(
        alert,
        expr=f"{query} unless on (ray_job) {over} == 1",
        fires=replace(fires, series={**fires.series, **beside}),
        silent=(*alert.silent, ended),
    )
