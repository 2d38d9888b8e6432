"""Where a server is asked, from its command line."""

from __future__ import annotations

import pytest

from rayguard.runner.serving.address import ServerAddress, address_of


@pytest.mark.parametrize(
    ("line", "host", "port"),
    [
        ("vllm serve m", "127.0.0.1", 8000),
        ("vllm serve m --port 8001 --host 0.0.0.0", "127.0.0.1", 8001),
        ("vllm serve m --port=8001 --host=10.0.0.7 --api-key s", "10.0.0.7", 8001),
        ("python3 -m vllm.entrypoints.openai.api_server --model m --host ::", "::1", 8000),
        ("swift rollout --model m", "127.0.0.1", 8000),
        ("swift deploy --model m --port 8100 --host localhost", "localhost", 8100),
        ("trl vllm-serve --model m --host [::1]", "::1", 8000),
        ("vllm serve m --config c.yaml --port 9000", "127.0.0.1", 9000),
        ("python my_server.py --port 7000", "127.0.0.1", 7000),
    ],
)
def test_where_it_listens_is_read(line, host, port):
    """With each server's own defaults; all addresses of a machine are asked on the nearest one."""
    assert address_of(line.split()) == ServerAddress(host, port)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("vllm serve m --uds /tmp/s", "Unix socket"),
        ("vllm serve m --ssl-certfile c --ssl-keyfile k", "TLS"),
        ("vllm serve m --headless", "no HTTP"),
        ("vllm serve m --grpc", "gRPC"),
        ("vllm serve m --config c.yaml", "--config"),
        ("vllm serve m --port auto", "not known"),
        ("vllm serve m --port 0", "not known"),
        ("vllm serve m --port", "not known"),
        ("python my_server.py", "not known"),
    ],
)
def test_where_it_cannot_be_asked_it_says_why(line, why):
    """And nobody is asked in its place."""
    found = address_of(line.split())
    assert found.port == 0
    assert why in found.why
