"""The run as a picture: reward and throughput over time, with every fault and every recovery in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from examples.grpo.outcome.verdict import join

if TYPE_CHECKING:
    from pathlib import Path

    from examples.grpo.history import History
    from examples.grpo.outcome.verdict import Joined

INK, GREY, GRID = "#1f2430", "#6b7280", "#e5e7eb"
REWARD, SPEED, FAULT, DOWN, CURE = "#2563eb", "#0d9488", "#dc2626", "#fde68a", "#16a34a"
CELLS = (0.0, 0.025, 0.30, 0.49, 0.71, 0.785, 0.895)  # where the columns of the table begin


def draw(history: History, path: Path) -> Path:
    """Write the picture to ``path`` (PNG) and return it."""
    joined = join(history)
    height = 5.2 + 0.24 * max(len(joined), 1)
    figure = Figure(figsize=(12.5, height))
    above, below, legend = figure.subplots(3, 1, height_ratios=[2.4, 1.5, 0.12 + 0.24 * max(len(joined), 1)])
    below.sharex(above)
    _reward(above, history)
    _throughput(below, history)
    for number, one in enumerate(joined, start=1):
        _mark(above, below, history, number, one)
    _names(legend, joined)
    title = "guarded by rayguard" if history.guarded else "bare Ray and vLLM"
    figure.suptitle(f"GRPO under fire, {title}", x=0.06, ha="left", color=INK, fontsize=14, weight="bold")
    figure.text(0.985, 0.965, "red: fault   green: serving again", ha="right", color=GREY, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path, dpi=130)
    return path


def _reward(axes: Any, history: History) -> None:
    at = [step.ended_at - _zero(history) for step in history.steps]
    axes.plot(at, [step.reward for step in history.steps], color=REWARD, marker="o", ms=3.5, lw=1.6, zorder=3)
    axes.set_ylim(0.4, 1.06)
    axes.set_ylabel("mean reward")
    _tidy(axes)
    axes.tick_params(labelbottom=False)


def _throughput(axes: Any, history: History) -> None:
    edges = [step.started_at - _zero(history) for step in history.steps]
    if history.steps:
        edges.append(history.steps[-1].ended_at - _zero(history))
        axes.stairs([step.throughput for step in history.steps], edges, color=SPEED, fill=True, alpha=0.75)
    axes.set_ylabel("tokens / s, by step")
    axes.set_xlabel("seconds since the first step")
    axes.set_ylim(bottom=0)
    _tidy(axes)


def _mark(above: Any, below: Any, history: History, number: int, one: Joined) -> None:
    struck = one.fault.at - _zero(history)
    for axes in (above, below):
        axes.axvline(struck, color=FAULT, lw=1.2, zorder=2)
        if one.incident and one.incident.closed_at:
            served = one.incident.closed_at - _zero(history)
            axes.axvspan(struck, served, color=DOWN, alpha=0.7, lw=0, zorder=1)
            axes.axvline(served, color=CURE, lw=1.2, zorder=2)
    above.annotate(
        str(number),
        (struck, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        color="white",
        fontsize=8.5,
        weight="bold",
        bbox={"boxstyle": "circle,pad=0.25", "fc": FAULT, "ec": "none"},
        zorder=4,
    )


def _names(axes: Any, joined: list[Joined]) -> None:
    axes.axis("off")
    rows = len(joined) + 1
    header = ("", "fault", "found to be", "remedy", "found in", "served again in", "tokens saved")
    for row, cells in enumerate((header, *(_cells(n, one) for n, one in enumerate(joined, start=1)))):
        for x, cell in zip(CELLS, cells, strict=True):
            style = {"color": GREY} if row == 0 else {"color": FAULT, "weight": "bold"} if x == 0 else {}
            axes.text(x, 1 - (row + 0.5) / rows, cell, transform=axes.transAxes, fontsize=9, **style)


def _cells(number: int, one: Joined) -> tuple[str, ...]:
    planned, incident = one.fault.planned, one.incident
    what = f"{planned.what.value.replace('_', ' ')}, rollout {planned.target}, step {planned.step}"
    if incident is None:
        return (str(number), what, "no incident", "", "", "", "")
    return (
        str(number),
        what,
        f"{incident.kind} ({incident.scope})",
        incident.remedy.replace("_", " ").replace("+", " + "),
        "?" if one.detect_s is None else f"{one.detect_s:.2f} s",
        "?" if incident.recover_s is None else f"{incident.recover_s:.1f} s",
        incident.tokens_told,
    )


def _zero(history: History) -> float:
    return history.steps[0].started_at if history.steps else history.started_at


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=GREY, labelsize=9)
    axes.yaxis.label.set_color(INK)
    axes.xaxis.label.set_color(INK)
    axes.grid(axis="y", color=GRID, zorder=0)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
