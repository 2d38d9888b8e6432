"""One prefork server for the engines of all these tests: each slot would import vLLM in one of its own."""

from __future__ import annotations

import pytest

from rayguard.engine.prefork.server import PreforkServer


class SharedServer(PreforkServer):
    """Outlives the slots that use it."""

    def stop(self, deadline_s=5.0):
        """Leave it running for the next slot."""


@pytest.fixture(scope="package")
def prefork():
    """For fixtures whose engines live in this process; not where the server itself is tested."""
    patch = pytest.MonkeyPatch()
    server = SharedServer()
    patch.setattr("rayguard.engine.supervision.slot.PreforkServer", lambda **_: server)
    yield server
    patch.undo()
    PreforkServer.stop(server, 0.0)
