"""``rayguard catalog``: the known failures, for people who look one up or write one."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayguard.cli.terminal import fail, many, show_json
from rayguard.errors import ConfigError
from rayguard.faults.diagnosis import Kind

if TYPE_CHECKING:
    from rayguard.faults.catalog import Catalog

catalog = typer.Typer(
    help="The known failures: list them, show one, check a file of your own.\n\n"
    "Example: `rayguard catalog show ray.actor_died`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--catalog", help="A catalog file of your own, asked first. May be repeated.", metavar="FILE"
    ),
]


def catalog_or_exit(files: list[Path] | None) -> Catalog:
    """Return the catalog with ``files``, or end with exit code 2."""
    from rayguard.faults.catalog_in_use import catalog_for  # noqa: PLC0415 - pydantic and yaml, only when needed

    try:
        return catalog_for(files or ())
    except ConfigError as error:
        fail(error, code=2)


def known_kind(kind: str | None) -> str | None:
    """Return ``kind`` if there is such a kind of failure; for typer."""
    kinds = [known.value for known in Kind]
    if kind is None or kind in kinds:
        return kind
    close = get_close_matches(kind, kinds, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(kinds)}"
    raise typer.BadParameter(f"{kind!r} is no kind of incident; {hint}")


@catalog.command("list")
def list_(
    *,
    kind: Annotated[
        str | None, typer.Option(callback=known_kind, help="Only this kind, e.g. cuda_oom.", metavar="K")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list with everything.")] = False,
    files: Files = None,
) -> None:
    """List the known failures, in the order in which they are asked.

    For example

    `rayguard catalog list --kind nccl_timeout` shows one kind,

    `rayguard catalog list | grep -i weights` searches.
    """
    from rayguard.cli.logs import catalog_views as views  # noqa: PLC0415

    signatures = [one for one in catalog_or_exit(files).signatures if kind in (None, one.kind.value)]
    if as_json:
        show_json([views.as_json(one) for one in signatures])
    elif signatures:
        views.show_signatures(signatures)
    else:
        typer.echo(f"No signature is of the kind {kind}.")


@catalog.command()
def show(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="As `rayguard catalog list` shows it.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    files: Files = None,
) -> None:
    """Show one known failure: what it looks like, what it is not, what to do.

    Example: `rayguard catalog show engine.dead`
    """
    from rayguard.cli.logs import catalog_views as views  # noqa: PLC0415

    known = catalog_or_exit(files)
    one = known.named(identifier)
    if one is None:
        from rayguard.logs.report import LIKENESS  # noqa: PLC0415 - it reads logs, which only this answer is about

        if identifier.startswith(LIKENESS):
            kind = identifier.removeprefix(LIKENESS)
            fail(
                f"{identifier!r} is no signature: the words were like those of {kind} failures; "
                f"`rayguard catalog list --kind {kind}` shows what is known of them",
                code=2,
            )
        ids = [signature.id for signature in known.signatures]
        close = get_close_matches(identifier, ids, n=4) or [i for i in ids if identifier in i][:4]
        hint = f"did you mean {' or '.join(close)}?" if close else "`rayguard catalog list` shows all"
        fail(f"there is no signature {identifier!r}; {hint}", code=2)
    if as_json:
        show_json(views.as_json(one))
    else:
        views.show_signature(one)


@catalog.command()
def check(file: Annotated[Path, typer.Argument(metavar="FILE", help="A catalog file of your own.")]) -> None:
    """Read a catalog file for mistakes; exit code 2 with the first one found.

    Example: `rayguard catalog check my.yaml && rayguard diagnose --catalog my.yaml train.log`
    """
    from rayguard.faults.catalog import default_catalog  # noqa: PLC0415
    from rayguard.faults.catalog_in_use import signatures_in  # noqa: PLC0415

    try:
        signatures = signatures_in(file)
    except ConfigError as error:
        fail(error, code=2)
    ours = {one.id for one in default_catalog().signatures}
    for one in signatures:
        if one.id in ours:
            typer.echo(f"{one.id} replaces rayguard's own signature of this id", err=True)
    kinds = Counter(one.kind.value for one in signatures)
    told = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    count = many(len(signatures), "signature", "signatures")
    typer.echo(f"{file}: {count}, no mistake{f' ({told})' if told else ''}")
