"""Reads PromQL well enough to say which series a query asks for, by which labels, and how.

Not a parser: it takes a query apart by what the builders of ``deploy.generate.alerts.promql`` and people write here.
"""

import re
from dataclasses import dataclass

from deploy.generate.alerts.promql import ADDED_LABELS
from deploy.generate.alerts.rules import recordings
from rayguard.metrics.instruments.instrument import MetricType
from rayguard.metrics.sources import known

PROMETHEUS_OWN = {"up", "ALERTS", "scrape_duration_seconds"}
OWN_LABELS = {"alertname", "alertstate", "le"}
FUNCTIONS = {
    *("sum", "max", "min", "count", "rate", "increase", "histogram_quantile", "clamp_min", "vector"),
    *("min_over_time", "max_over_time", "last_over_time", "label_replace"),
}
KEYWORDS = {"by", "on", "and", "or", "unless", "offset"}
HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")
_SELECTOR = re.compile(r"(?<![\w:\"])([a-zA-Z_:][\w:]*)(\{[^}]*\})?(?![\w:]|\s*\()")
_GROUPING = re.compile(r"\b(?:by|on) \(([^)]*)\)")
_NEW = re.compile(r"\((\S+?(?:\{[^}]*\})?) unless \1 offset \w+\)")


@dataclass(frozen=True)
class Asked:
    """One series that a query asks for. ``around``: what stands before and behind it."""

    name: str
    matchers: tuple[str, ...]
    around: tuple[str, str]

    @property
    def base(self):
        """The name of the instrument."""
        for part in HISTOGRAM_PARTS:
            base = self.name.removesuffix(part)
            if base in known() and known()[base].type is MetricType.HISTOGRAM:
                return base
        return self.name

    @property
    def labels(self):
        """The labels it has."""
        if self.name in PROMETHEUS_OWN:
            return {*ADDED_LABELS, *OWN_LABELS}
        recorded = {one.record: one.labels for one in recordings()}
        if self.name in recorded:
            return set(recorded[self.name])
        own = known()[self.base].labels
        return {*own, *ADDED_LABELS, *(("le",) if self.name.endswith("_bucket") else ())}


def asked(expr):
    """Return the series of a query."""
    bare = _GROUPING.sub(lambda found: " " * len(found[0]), expr)
    found = []
    for match in _SELECTOR.finditer(bare):
        if match[1] in KEYWORDS or _inside_quotes_or_braces(bare, match.start()):
            continue
        if re.fullmatch(r"\d+[smhd]", match[1]):
            continue
        matchers = tuple(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", match[2] or ""))
        found.append(Asked(match[1], matchers, (bare[: match.start()], bare[match.end() :])))
    return found


def _inside_quotes_or_braces(text, at):
    before = text[:at]
    return before.count('"') % 2 == 1 or before.count("{") > before.count("}") or _in_window(text, at)


def _in_window(text, at):
    return text[:at].count("[") > text[:at].count("]")


def faults(expr):
    """Return what is wrong with a query, in words."""
    wrong = []
    series = asked(expr)
    recorded = {one.record for one in recordings()}
    wrong += [
        f"there is no {one.name}"
        for one in series
        if one.base not in known() and one.name not in PROMETHEUS_OWN | recorded
    ]
    wrong += [f"{name} is no function here" for name in re.findall(r"(\w+)\(", expr) if name not in FUNCTIONS]
    if wrong:
        return wrong
    for one in series:
        wrong += [f"{one.name} has no label {name}" for name in one.matchers if name not in one.labels]
        wrong += _misread(one, expr)
    for grouping in _GROUPING.finditer(expr):
        within = _parenthesised(expr, grouping.end())
        for one in [one for one in asked(within) if one.name not in PROMETHEUS_OWN]:
            wrong += [
                f"{one.name} has no label {name}"
                for name in re.findall(r"\w+", grouping[1])
                if name not in one.labels
            ]
    return wrong


def _parenthesised(expr, at):
    """The operand that a grouping is of: the next parentheses; none behind ``on (...)``."""
    rest = expr[at:].lstrip()
    if not rest.startswith("("):
        return ""
    depth = 0
    for number, letter in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if not depth:
            return rest[: number + 1]
    return rest


def _misread(one, expr):
    instrument = known().get(one.base)
    if instrument is None:
        return []
    before, behind = one.around
    grows = before.endswith(("rate(", "increase(")) and behind.startswith("[")
    if instrument.type is MetricType.HISTOGRAM:
        if one.name == one.base:
            return [f"{one.name} is a histogram: ask for its _bucket, _sum or _count"]
        return [] if grows else [f"{one.name} is read without rate() or increase()"]
    if instrument.type is MetricType.COUNTER:
        # the growth of one whose labels are new: see promql.grown
        new = any(found.start() <= len(before) < found.end() for found in _NEW.finditer(expr))
        return [] if grows or new else [f"{one.name} is read without rate() or increase()"]
    return [f"{one.name} is a gauge and has no rate"] if grows else []
