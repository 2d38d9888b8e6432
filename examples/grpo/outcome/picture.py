"""The run as a picture: reward, throughput and who serves over time, with every fault and recovery in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from examples.grpo.outcome.verdict import join

if TYPE_CHECKING:
    from pathlib import Path

    from examples.grpo.history import History
    from examples.grpo.outcome.verdict import Joined

INK, GREY, GRID = "#1f2430", "#6b7280", "#e5e7eb"
REWARD, SPEED, FAULT, AWAY, SERVES = "#2563eb", "#0d9488", "#dc2626", "#f59e0b", "#bbe7c8"
NEAR_S = 0.5
CELLS = (0.0, 0.025, 0.30, 0.49, 0.71, 0.785, 0.895)  # where the columns of the table begin


def draw(history: History, path: Path) -> Path:
    """Write the picture to ``path`` (PNG) and return it."""
    picture(history).savefig(path, dpi=130)
    return path


def picture(history: History) -> Figure:
    """Return the picture."""
    joined = join(history)
    height = 6.0 + 0.24 * max(len(joined), 1)
    figure = Figure(figsize=(12.5, height))
    ratios = [2.4, 1.5, 0.8, 0.12 + 0.24 * max(len(joined), 1)]
    above, below, lanes, legend = figure.subplots(4, 1, height_ratios=ratios)
    below.sharex(above)
    lanes.sharex(above)
    _reward(above, history)
    _throughput(below, history)
    _lanes(lanes, history, joined)
    for struck, numbers in _struck(joined, _zero(history)).items():
        _mark((above, below, lanes), struck, numbers)
    for killed in history.killed_ranks:
        _mark((above, below, lanes), killed.at - _zero(history), f"rank {killed.rank}")
    _names(legend, joined)
    title = "guarded by rayguard" if history.guarded else "bare Ray and vLLM"
    figure.suptitle(
        f"GRPO with faults on purpose, {title}", x=0.06, ha="left", color=INK, fontsize=14, weight="bold"
    )
    figure.text(
        0.985,
        0.965,
        "red: a fault   amber: that rollout is away, the steps go on with who serves",
        ha="right",
        color=GREY,
        fontsize=9,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.98), h_pad=0.4)
    return figure


def _reward(axes: Any, history: History) -> None:
    at = [step.ended_at - _zero(history) for step in history.steps]
    axes.plot(at, [step.reward for step in history.steps], color=REWARD, marker="o", ms=3.5, lw=1.6, zorder=3)
    axes.set_ylim(0.4, 1.06)
    axes.set_ylabel("mean reward")
    _tidy(axes)
    axes.tick_params(labelbottom=False)


def _throughput(axes: Any, history: History) -> None:
    for step in history.steps:  # a gap between two is one in which no step ran
        width = step.ended_at - step.started_at
        begin = step.started_at - _zero(history)
        look = {"align": "edge", "color": SPEED, "alpha": 0.75, "edgecolor": "white", "linewidth": 0.5}
        axes.bar(begin, step.throughput, width, **look)
    axes.set_ylabel("tokens / s, by step")
    axes.set_ylim(bottom=0)
    _tidy(axes)
    axes.tick_params(labelbottom=False)


def _lanes(axes: Any, history: History, joined: list[Joined]) -> None:
    """Draw who serves: a lane for each rollout, in another colour from a fault to the end of its incident."""
    end = history.steps[-1].ended_at if history.steps else history.started_at
    for number in range(len(history.rollouts)):
        mine = [
            (one.fault.at, one.incident.closed_at or end)
            for one in joined
            if one.fault.planned.target == number and one.incident
        ]
        last = max([end, *(closed for _, closed in mine)])
        lane = (number - 0.36, 0.72)
        axes.broken_barh([(0, last - _zero(history))], lane, facecolors=SERVES)
        spans = [(struck - _zero(history), closed - struck) for struck, closed in mine]
        axes.broken_barh(spans, lane, facecolors=AWAY)
    axes.set_ylim(len(history.rollouts) - 0.5, -0.5)
    axes.set_yticks(range(len(history.rollouts)), [f"rollout {n}" for n in range(len(history.rollouts))])
    axes.set_xlabel("seconds since the first step")
    _tidy(axes)
    axes.grid(visible=False)


def _struck(joined: list[Joined], zero: float) -> dict[float, str]:
    """Return the numbers of the faults by their moment; of several in one moment all, that none is hidden."""
    found: dict[float, str] = {}
    for number, one in enumerate(joined, start=1):
        at = one.fault.at - zero
        near = next((moment for moment in found if abs(moment - at) < NEAR_S), at)
        found[near] = f"{found[near]}, {number}" if near in found else str(number)
    return found


def _mark(places: tuple[Any, ...], struck: float, numbers: str) -> None:
    for axes in places:
        axes.axvline(struck, color=FAULT, lw=1.2, zorder=4)
    places[0].annotate(
        numbers,
        (struck, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        color="white",
        fontsize=8.5,
        weight="bold",
        bbox={"boxstyle": "round,pad=0.3,rounding_size=0.8", "fc": FAULT, "ec": "none"},
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
