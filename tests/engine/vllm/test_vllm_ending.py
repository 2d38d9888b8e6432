"""Letting go of vLLM's client: its sockets are closed, whatever its own shutdown does."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from rayguard.engine.vllm import client_teardown
from rayguard.engine.vllm.client_teardown import let_go


class Resources:
    """As vLLM's: called, it ends the engine manager and closes the socket."""

    def __init__(self, manager=None):
        self.engine_manager, self.calls = manager, 0
        self.input_socket = SimpleNamespace(closed=False)

    def __call__(self):
        self.calls += 1
        if self.engine_manager is not None:
            raise ProcessLookupError("it ended just then")
        self.input_socket.closed = True


def client(resources, shutdown):
    return SimpleNamespace(resources=resources, shutdown=lambda timeout: shutdown())


def test_a_shutdown_that_works_is_left_alone():
    """Nothing is done twice."""
    resources = Resources()
    let_go(client(resources, resources), 1.0, waits=True)
    assert resources.calls == 1


def test_a_shutdown_that_raises_half_way_is_finished():
    """The processes are gone: only the sockets matter."""
    resources = Resources(manager=object())
    let_go(client(resources, resources), 1.0, waits=True)
    assert resources.input_socket.closed


def test_a_monitor_that_is_at_it_is_waited_for():
    """Its thread shuts down what died, and ours finds nothing left to do."""
    resources = Resources()
    threading.Timer(0.05, resources).start()
    let_go(client(resources, lambda: None), 1.0, waits=True)
    assert (resources.calls, resources.input_socket.closed) == (1, True)


def test_a_monitor_that_failed_is_made_good(monkeypatch):
    """It raised in its thread: nobody else would close the socket."""
    monkeypatch.setattr(client_teardown, "_CLOSED_S", 0.02)
    resources = Resources(manager=object())
    let_go(client(resources, lambda: None), 1.0, waits=True)
    assert resources.input_socket.closed


@pytest.mark.parametrize("core", [client(None, lambda: 1 / 0), SimpleNamespace()])
def test_a_client_of_another_make_is_no_trouble(core):
    """An engine in this process has no sockets."""
    let_go(core, 1.0, waits=True)


def test_a_loop_that_stands_still_is_not_waited_for():
    """Its sockets close once it runs again."""
    resources = Resources()
    let_go(client(resources, lambda: None), 1.0, waits=False)
    assert resources.calls == 0
