"""Building with an engine that runs already: the user's recipe makes a client of it, and no other core."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rayguard.engine.adoption.arguments import digest_of
from rayguard.engine.vllm.adoption.attach import NotAdoptedError, Takeover
from rayguard.engine.vllm.adoption.attach import taking_over as attached

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rayguard.engine.adoption.lease import EngineLease
    from rayguard.engine.settings import EngineSettings


@contextlib.contextmanager
def taking_over(lease: EngineLease, mark: str, records: Path, settings: EngineSettings) -> Iterator[None]:
    """Let what this thread builds meanwhile go on with the engine of ``lease``.

    Raises:
        NotAdoptedError: It is not what the recipe builds, or does not answer.
    """

    def refuse(config: str) -> None:
        if f"{digest_of(settings)} {config}" != lease.arguments:
            raise NotAdoptedError("it was built with other arguments")

    with attached(Takeover(lease=lease, mark=mark, records=str(records), refuse=refuse)):
        yield
