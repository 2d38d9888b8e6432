"""The progress bar of a batch, on a terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from typing_extensions import override

from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rayguard.pool.values.result import Generation


class _Shown:
    """A text that is looked up when the bar is drawn, ten times a second, and not with each answer."""

    def __init__(self, look: Callable[[], str]) -> None:
        self._look = look

    @override
    def __str__(self) -> str:
        return self._look()


@contextmanager
def bar(
    total: int, *, wanted: bool | None, engines: Callable[[], str]
) -> Iterator[Callable[[Generation], None]]:
    """Give a function that is told of each answer; shows a bar on a terminal, or when it is ``wanted``."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield lambda _: None
        return
    counted = TextColumn("{task.fields[tokens]:,} tokens, {task.fields[engines]}")
    columns = (*Progress.get_default_columns(), TimeElapsedColumn(), MofNCompleteColumn(), counted)
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task, tokens = progress.add_task("generating", total=total, tokens=0, engines=_Shown(engines)), 0

        def seen(generation: Generation) -> None:
            nonlocal tokens
            with harmless("progress"):
                tokens += sum(len(sample.generated) for sample in generation.samples)
                progress.update(task, advance=1, tokens=tokens)

        yield seen
