"""A server of ms-swift that is started again keeps its port."""

from __future__ import annotations

import socket
import subprocess
import sys
import types

import pytest

from rayguard.frameworks.swift.told_port import keep

SERVES = (
    "import socket, sys, time\n"
    "with socket.create_server(('127.0.0.1', 0)) as server:\n"
    "    print(server.getsockname()[1], flush=True)\n"
    "    one, _ = server.accept()\n"
    "    one.sendall(one.recv(1))\n"
    "    sys.stdin.read()\n"
)


def find_free_port(start_port=None, retry=100):
    """As ms-swift 4.6 has it."""
    for port in range(start_port or 0, (start_port or 0) + retry):
        with socket.socket() as tried:
            try:
                tried.bind(("", port))
                return tried.getsockname()[1]
            except OSError:
                pass
    raise OSError("no port")


def arguments_of_swift():
    """``swift.arguments.deploy_args``, as far as it is known."""
    module = types.ModuleType("swift.arguments.deploy_args")
    module.find_free_port = find_free_port
    return module


@pytest.fixture
def left_port():
    """The port of a server that was killed while a client was connected to it, which still is."""
    command = [sys.executable, "-S", "-c", SERVES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        port = int(server.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"x")
            assert client.recv(1) == b"x"
            server.kill()
            server.wait()
            yield port


def test_a_port_with_closing_connections_alone_is_kept(left_port):
    """As ms-swift looks for one, it takes the next."""
    module = arguments_of_swift()
    assert module.find_free_port(left_port) != left_port
    assert keep(module)
    assert module.find_free_port(left_port) == left_port


def test_a_port_where_somebody_listens_is_left_to_ms_swift():
    """It takes another one, as ever; and any one where none was told."""
    module = arguments_of_swift()
    assert keep(module)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert module.find_free_port(port) not in {port, 0}
    assert module.find_free_port()


def test_an_ms_swift_that_looks_otherwise_is_left_as_it_is(caplog):
    """And said; a second time does nothing."""
    module = types.ModuleType("swift.arguments.deploy_args")
    assert not keep(module)
    assert "may listen on another port" in caplog.text
    module = arguments_of_swift()
    assert keep(module)
    once = module.find_free_port
    assert keep(module)
    assert module.find_free_port is once
