"""Ports that a command names: taken, named twice, among Ray's workers, or where the kernel may put anything."""

from __future__ import annotations

import shlex
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rayguard
from rayguard.dialects import port_options
from rayguard.dialects.job_settings import JobSettings
from rayguard.errors import ConfigError
from rayguard.preflight_checks import ports
from rayguard.preflight_checks.listening import PortFacts, port_facts

QUIET = PortFacts(ephemeral=(32_768, 60_999))
NAMED = [
    ("torchrun --master_port 29501 --nproc_per_node 2 train.py --master_port 7", {"--master_port": 29501}),
    ("torchrun --master-port=29501 --node_rank 1 train.py", {}),
    ("torchrun --standalone --master_port 29501 train.py", {}),
    ("torchrun --nproc_per_node 2 train.py --master_port 7", {}),
    ("python -m torch.distributed.run --master-port=29501 train.py", {"--master-port": 29501}),
    ("deepspeed --master_port 29501 train.py", {"--master_port": 29501}),
    ("accelerate launch --main_process_port 29501 train.py", {}),
    (
        "accelerate launch --num_machines 2 --machine_rank 0 --main_process_port 29501 train.py",
        {"--main_process_port": 29501},
    ),
    ("MASTER_PORT=29501 NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo", {"MASTER_PORT": 29501}),
    ("MASTER_PORT=29501 NODE_RANK=1 swift rlhf --rlhf_type grpo", {}),
    ("vllm serve m --port 8001", {"--port": 8001}),
    ("vllm bench serve --port 8001", {}),
    ("trl vllm-serve --model m --port 8001", {"--port": 8001}),
    ("python -m vllm.entrypoints.openai.api_server --port 8001", {"--port": 8001}),
    ("swift rollout --port 8001", {}),
    ("python train.py --port 8001", {}),
    ("python t.py --vllm_mode server --vllm_group_port 51216", {"--vllm_group_port": 51216}),
    ("python t.py --vllm_mode server --vllm_server_host 10.0.0.2 --vllm_group_port 51216", {}),
    ("python t.py --vllm_mode server --vllm_server_base_url http://gpu-1:8000 --vllm_group_port 5", {}),
    ("python t.py --vllm_mode server --vllm_server_port 8001", {}),
    ("python t.py --config c.yaml --vllm_mode server --vllm_group_port 51216", {}),
    (
        "ray start --head --dashboard-port 8300",
        {"--port": 6379, "--ray-client-server-port": 10001, "--dashboard-port": 8300},
    ),
    ("ray start --address 10.0.0.1:6379 --metrics-export-port=8080", {"--metrics-export-port": 8080}),
    ("ray job submit --port 3 -- python x.py", {}),
    ("torchrun --master_port many train.py", {}),
    ("torchrun --master_port 99999 train.py", {}),
]


@pytest.mark.parametrize(("command", "expected"), NAMED)
def test_only_what_will_listen_here_is_read_from_a_command(command, expected):
    """By the option or variable that says so, as it was spelled."""
    words = shlex.split(command)
    environment = {}
    while "=" in words[0] and not words[0].startswith("-"):
        name, _, environment[name] = words[0].partition("=")
        words = words[1:]
    assert port_options.ports_of(words, environment) == expected


def found(here=QUIET, **settings):
    return [
        (one.id, dict(one.settings.get("ports", {}))) for one in ports.check(JobSettings(**settings), here)
    ]


def test_what_is_wrong_with_ports_and_what_to_take():
    """The next one that is free; elsewhere for those that the kernel hands out."""
    taken = PortFacts(taken={29_500: " by python (pid 7)", 29_501: ""}, ephemeral=(32_768, 60_999))
    assert found(taken, ports={"MASTER_PORT": 29_500}) == [("ports.taken", {"MASTER_PORT": 29_502})]
    (told,) = ports.check(JobSettings(ports={"MASTER_PORT": 29_500}), taken)
    assert "MASTER_PORT=29500 is taken on this machine by python (pid 7): 'address already" in told.message
    assert found(ports={"a": 8265, "b": 8265, "c": 8265}) == [
        ("ports.same", {"b": 8266}),
        ("ports.same", {"c": 8267}),
    ]
    assert found(ports={"group": 51_216, "other": 50_000}) == [
        ("ports.ephemeral", {"group": 20_000}),
        ("ports.ephemeral", {"other": 20_001}),
    ]
    reserved = PortFacts(ephemeral=(32_768, 60_999), reserved=frozenset({51_216}))
    assert found(reserved, ports={"group": 51_216}) == []
    assert found(ports={"--port": 12_345}, worker_ports=(10_002, 19_999)) == [
        ("ports.same", {"--port": 20_000})
    ]
    assert found(ports={"a": 0, "b": 0, "c": 80, "d": 8000}) == []
    assert found(PortFacts(), ports={"a": 51_216}) == [], "a machine that says nothing is no failure"


@settings(max_examples=30)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 65_535)),
    st.none() | st.tuples(st.integers(0, 65_535), st.integers(0, 65_535)).map(sorted).map(tuple),
    st.none() | st.just((1, 65_535)) | st.just((32_768, 60_999)),
    st.dictionaries(st.integers(1, 65_535), st.just("")),
)
def test_what_is_proposed_for_ports_is_told_nothing_more(named, workers, ephemeral, taken):
    """All at once."""
    here = PortFacts(taken=taken, ephemeral=ephemeral)
    proposed = dict(named)
    for one in ports.check(JobSettings(ports=named, worker_ports=workers), here):
        proposed |= one.settings["ports"]
    assert list(ports.check(JobSettings(ports=proposed, worker_ports=workers), here)) == []


def test_a_port_that_something_listens_on_is_seen_with_its_process(tmp_path):
    """On this machine, for IPv4 and IPv6."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("", 0), family=socket.AF_INET6) as two,
    ):
        wanted = [one.getsockname()[1], two.getsockname()[1]]
        here = port_facts(wanted)
        assert all("(pid " in here.taken[port] for port in wanted)
        report = rayguard.preflight(ports={"dashboard": wanted[0]})
        (told,) = [one for one in report.findings if one.id == "ports.taken"]
        assert told.write.startswith("ports={'dashboard': ")
    assert wanted[0] not in port_facts(wanted).taken
    assert here.ephemeral[0] < here.ephemeral[1]
    assert port_facts([1], tmp_path) == PortFacts(), "nothing is known without /proc"
    (tmp_path / "sys/net/ipv4").mkdir(parents=True)
    (tmp_path / "sys/net/ipv4/ip_local_port_range").write_text("32768\t60999\n")
    (tmp_path / "sys/net/ipv4/ip_local_reserved_ports").write_text("40000-40002,51216\n")
    assert port_facts([1], tmp_path).reserved == {40_000, 40_001, 40_002, 51_216}


def test_a_command_is_corrected_in_its_own_spelling():
    """An option is written as one, a variable as one; ports given by name are added to the command's."""
    report = rayguard.preflight(
        "ray start --head --port 12345 --metrics-export-port=8265", ports={"mine": 8265}, host_bytes=1 << 40
    )
    written = {one.write for one in report.findings if one.id == "ports.same"}
    assert written == {"--port 20000", "--metrics-export-port 8266", "mine=8267"}


@pytest.mark.parametrize("wrong", [3, {"a": -1}, {"a": 70_000}, {"a": "8000"}, {"a": True}, ["a"]])
def test_ports_that_are_none_are_refused(wrong):
    """By name."""
    with pytest.raises(ConfigError, match="ports"):
        rayguard.preflight(ports=wrong)
