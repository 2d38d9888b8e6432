"""The main job: prompts -> samples -> reward -> training -> weights into every engine, disturbed by plan.

``python -m examples.grpo`` runs it guarded, ``GUARD=0 python -m examples.grpo`` the same schedule without
rayguard. Leaves ``report.json``, ``run.png`` and the incident journal in a folder of its own below ``run/``.
The training itself is ``loop``.
"""

from __future__ import annotations

import json
import time
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import ray
import typer
from rich.console import Console

from examples.grpo.cluster import hire, ray_cluster
from examples.grpo.faults import Disturbance
from examples.grpo.history import History
from examples.grpo.loop import Loop
from examples.grpo.memory import memory_of_processes
from examples.grpo.observer import Observer
from examples.grpo.outcome.picture import draw
from examples.grpo.outcome.report import report
from examples.grpo.outcome.summary import summary
from examples.grpo.outcome.verdict import problems
from examples.grpo.outcome.view import showing
from examples.grpo.samples import PromptSource
from examples.grpo.schedule import SHORTEST_RUN, plan
from rayguard.testing.injector import FaultInjector

if TYPE_CHECKING:
    from examples.grpo.outcome.view import View


class Trainer(str, Enum):
    """Who trains."""

    ACTOR = "actor"
    GANG = "gang"


def main(
    *,
    steps: Annotated[int, typer.Option(min=SHORTEST_RUN, help="Training steps.")] = 40,
    seed: Annotated[int, typer.Option(help="Of the model, the prompts and the schedule of faults.")] = 0,
    guard: Annotated[bool, typer.Option(envvar="GUARD", help="Off: plain Ray and vLLM.")] = True,
    trainer: Annotated[
        Trainer,
        typer.Option(envvar="TRAINER", help="One actor, or a gang of three ranks, of which one is killed."),
    ] = Trainer.ACTOR,
    out: Annotated[Path | None, typer.Option(help="Folder for the results, else below run/.")] = None,
    to: Annotated[Path | None, typer.Option("--report", envvar="REPORT", help="Report also here.")] = None,
) -> None:
    """Train a tiny model with GRPO while its engines are killed, frozen and made to fail."""
    console = Console()
    out = (out or Path("run") / f"grpo-{datetime.now().astimezone():%Y%m%d-%H%M%S}").absolute()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):  # an old journal or a burnt fuse would count as this run's
        raise typer.BadParameter(f"{out} is not empty: name another folder", param_hint="--out")
    gang = trainer is Trainer.GANG
    if gang and not guard:
        raise typer.BadParameter("a gang is rayguard's: it goes with --guard", param_hint="--trainer")
    history = History(steps_planned=steps, started_at=time.time(), guarded=guard, gang=gang)
    injector = FaultInjector(plan(steps, seed))
    history.fired = injector.fired  # one list: what the injector does is seen at once
    with showing(history, console) as view:
        perform(history, view, injector, out, seed)
    found = problems(history)
    document = json.dumps(report(history, found), indent=2) + "\n"
    for path in (out / "report.json", to):
        if path is not None:
            path.write_text(document, encoding="utf-8")
    draw(history, out / "run.png")
    console.print(summary(history, found))
    console.print(f"report.json, run.png and the journal are in {out}", highlight=False, soft_wrap=True)
    raise typer.Exit(1 if found else 0)


def perform(history: History, view: View, injector: FaultInjector, out: Path, seed: int) -> None:
    """Run the whole training; how far it came and why it ended stands in ``history``."""
    history.doing = "starting Ray, building the model"
    view.tick()
    try:
        with ray_cluster(out / "rayguard"):
            cast = hire(out, seed=seed, history=history)
            handles = cast.rollouts.handles
            disturbance = Disturbance(injector, handles, cast.fuses, seed)
            loop = Loop(
                cast=cast,
                prompts=PromptSource(encode=cast.encode, seed=seed),
                observer=Observer(history, view, handles, also=disturbance.settle),
                disturbance=disturbance,
                history=history,
            )
            loop.start()
            for number in range(history.steps_planned):
                loop.step(number)
            loop.finish()
            cast.end()
    except (ray.exceptions.RayError, RuntimeError, TimeoutError) as error:
        history.failure = f"at {history.doing}: {str(error).strip().splitlines()[-1]}"
    history.memory = memory_of_processes(out / "rayguard")
    history.never_fired = tuple(fault.what.value for fault in injector.missing())
    history.doing = "ended" if history.failure else "done"
    history.ended_at = time.time()


def run() -> None:
    """Start from the command line."""
    typer.run(main)
