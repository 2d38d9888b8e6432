"""``rayguard up``, ``down`` and ``top``, and what ``status`` and ``incidents`` ask a cluster.

Commands only: connecting, asking, exit codes. How things look is ``cluster_views`` and ``top``; the
connection is ``rayguard.cluster.view.connect``. Each is a driver for as long as it takes, without a trace.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayguard.cli.terminal import fail, printable, show_json
from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rayguard.cluster.install.up_and_down import ClusterInstalled
    from rayguard.cluster.view.cluster_view import ClusterView
    from rayguard.cluster.view.connect import Connection
    from rayguard.recovery.incident import Incident

_ASK_S = 30.0  # all that is asked at once, through ray:// with the start of a worker
_REMOVE_S = 120.0
_TOP_SINCE_S = 3_600.0
_LINE = 'runtime_env={"rayguard": {}}'
_PLUGINS = """RAY_RUNTIME_ENV_PLUGINS='[{"class": "rayguard.cluster.plugin.RayguardPlugin"}]'"""

Home = Annotated[
    Path | None,
    typer.Option(help="Where to look instead of RAYGUARD_HOME or the default.", metavar="DIR"),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-a",
        metavar="A",
        help="Of the cluster: HOST:PORT of its head node, or ray://HOST:10001 from outside. "
        "Without it RAY_ADDRESS, or the cluster that runs on this machine.",
    ),
]


def up(
    *,
    address: Address = None,
    wait: Annotated[
        float, typer.Option(min=1, max=3600, help="Seconds to wait for all nodes.", metavar="S")
    ] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Put an agent of rayguard on each node of a cluster; nodes that join later get theirs by themselves.

    It changes no job: agents watch the node, tell deaths and their causes, and serve the numbers of all
    processes to Prometheus. Doing it again is harmless. The exit code is 1 when a node has none.

    For example

    `rayguard up` on a node of the cluster,

    `rayguard up --address ray://10.0.0.1:10001` from elsewhere.
    """
    from rayguard.cluster.install import up_and_down  # noqa: PLC0415 - `rayguard --version` need not wait for it

    with _reach(address) as connection:
        if not as_json:
            for note in connection.notes:
                typer.echo(f"rayguard: {note}", err=True)
            version = f", Ray {connection.ray_version}" if connection.ray_version else ""
            typer.echo(f"connected to {connection.address}{version}")
        found = connection.run(up_and_down.install, deadline_s=wait)
    if as_json:
        show_json(found)
    else:
        _tell_installed(found)
    if any(node["what"] == "failed" for node in found["nodes"]):
        raise typer.Exit(1)


def down(
    *,
    address: Address = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The names of what was removed.")] = False,
) -> None:
    """Take rayguard's agents and supervisors off a cluster. Jobs go on, journals stay.

    A job under the plugin brings the agents back when it starts its next worker.

    Example: `rayguard down --yes`
    """
    from rayguard.cluster.install import installation  # noqa: PLC0415 - not for `rayguard --version`

    with _reach(address) as connection:
        names = connection.run(installation.actor_names, deadline_s=_ASK_S)
        if names and not (yes or as_json):
            _confirm(names, connection.address)
        removed = connection.run(installation.remove_all, deadline_s=_REMOVE_S)
    if as_json:
        show_json(removed)
    elif removed:
        for name in removed:
            typer.echo(f"removed {_spoken(name)}")
        typer.echo("Journals stay where they are, in RAYGUARD_HOME of each node.")
    else:
        typer.echo(f"There is nothing of rayguard on {connection.address}.")


def top(
    *,
    address: Address = None,
    every: Annotated[
        float, typer.Option(min=0.5, max=3600, help="Seconds between looks.", metavar="S")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once, whole.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object, once.")] = False,
) -> None:
    """Show a cluster live: nodes, memory and when it is full, classes, engines, jobs, stories, incidents.

    What needs somebody stands first; what there is no room for is counted. `q` or Ctrl-C ends it.

    For example

    `rayguard top --every 5` looks every five seconds,

    `rayguard top --json | jq '.nodes[] | select(.state != "alive")'` is for programs.
    """
    with _reach(address) as connection:
        first = _look(connection)
        if as_json:
            show_json(first.to_json())
            return
        from rayguard.cli.cluster_views import show  # noqa: PLC0415 - not for --json
        from rayguard.cli.top import top as live  # noqa: PLC0415

        if once:
            show(first)
        else:
            live(first, lambda: _look(connection), every)


def show_cluster(address: str | None, *, as_json: bool) -> None:
    """Show the status of a cluster."""
    with _reach(address) as connection:
        found = replace(_look(connection), incidents=())
    if as_json:
        show_json(found.to_json())
        return
    from rayguard.cli.cluster_views import show  # noqa: PLC0415 - not for --json

    show(found)


def incidents_of(address: str) -> list[Incident]:
    """Return the incidents of all nodes, oldest first; says on the error stream whose are missing."""
    from rayguard.cluster.view import answers, survey  # noqa: PLC0415 - `rayguard --version` need not wait for it

    with _reach(address) as connection:
        said = connection.run(partial(survey.ask, pages=False, since=0.0), deadline_s=_ASK_S)
    for missing in answers.unanswered(said):
        typer.echo(f"rayguard: without the incidents of {missing}", err=True)
    return list(answers.incidents_in(said))


def _look(connection: Connection) -> ClusterView:
    from rayguard.cluster.view import answers, survey  # noqa: PLC0415 - `rayguard --version` need not wait for it

    said = connection.run(partial(survey.ask, since=time.time() - _TOP_SINCE_S), deadline_s=_ASK_S)
    return answers.view(said, address=connection.address, notes=connection.notes)


@contextlib.contextmanager
def _reach(address: str | None) -> Iterator[Connection]:
    """Be connected; what goes wrong becomes a sentence and an exit code."""
    from rayguard.cluster.view.connect import UnreachableError, connected  # noqa: PLC0415

    try:
        import ray  # noqa: F401, PLC0415 - is it there?
    except ImportError:
        fail("Ray is not installed here: pip install ray")
    try:
        with connected(address) as connection:
            yield connection
    except ConfigError as error:
        fail(error, code=2)
    except UnreachableError as error:
        fail(error)


def _confirm(names: list[str], address: str) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{len(names)} actors would be removed from {address}: say --yes")
    if not typer.confirm(f"Remove {', '.join(map(_spoken, names[:4]))}{'…' if names[4:] else ''}?"):
        raise typer.Exit(1)


def _spoken(name: str) -> str:
    """Return an actor's name as people say it."""
    what, _, whose = name.removeprefix("rayguard:").partition(":")
    return f"{what} of {'node' if what == 'agent' else 'job'} {whose[:12]}"


def _tell_installed(found: ClusterInstalled) -> None:
    told = {
        "installed": "installed",
        "there": "already there",
        "replaced": "replaced rayguard {was}",
        "failed": "FAILED: {why}",
    }
    for node in found["nodes"]:
        said = told[node["what"]].format(**node)
        line = f"{node['host']} {node['node_id'][:8]}  {said}  {node.get('url', '')}"
        typer.echo(f"  {printable(line)}".rstrip())
    typer.echo(
        f"\nPrometheus finds all nodes through {found['discovery']} on the head node. In prometheus.yml:"
    )
    typer.echo("  scrape_configs:\n    - job_name: rayguard\n      file_sd_configs:")
    typer.echo(f"        - files: [{json.dumps(found['discovery'])}]")
    if len(found["nodes"]) > 1 and all("//127." in (node.get("url") or "//127.") for node in found["nodes"]):
        typer.echo(
            "The endpoints listen on loopback only. For a Prometheus elsewhere, start the nodes with\n"
            "RAYGUARD_METRICS_ADDRESS=0.0.0.0 and RAYGUARD_METRICS_TOKEN_FILE (it needs that token)."
        )
    _tell_plugin(found)


def _tell_plugin(found: ClusterInstalled) -> None:
    without = [node["host"] for node in found["nodes"] if node.get("plugin") is False]
    unknown = [node["host"] for node in found["nodes"] if node.get("plugin") is None]
    bare = [job for job in found["jobs"] if not job["plugin"]]
    typer.echo("")
    for job in bare:
        what = printable(job["entrypoint"]) or "no entrypoint"
        typer.echo(f"job {job['id']} ({what}) runs without the plugin.")
    typer.echo(f"To have the workers of a job watched, give it {_LINE} (in ray.init or `ray job submit`).")
    if without:
        typer.echo(
            f"That needs the plugin on each node, and {', '.join(without[:4])} started without it: set"
        )
    elif unknown:
        typer.echo("That needs the plugin on each node; whether it is loaded cannot be seen from here. Set")
    if without or unknown:
        typer.echo(f"  {_PLUGINS}\nin the environment of `ray start`.")
