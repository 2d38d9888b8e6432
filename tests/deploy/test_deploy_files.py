"""Compose, systemd, Ray's launcher, the image, the rules: right as they are, and a mistake in any of them is told."""

import functools
import runpy

import pytest
import ray
import yaml

from deploy.generate import kubernetes_files
from rayguard.cluster.plugin.config import asked
from tests.deploy import compose_file, hosts, surroundings
from tests.deploy.checks import DEPLOY, KUBERNETES, NotHereError, count, every, promtool

COMPOSE = DEPLOY / "compose" / "compose.yaml"
WORKER = DEPLOY / "systemd" / "rayguard-ray-worker.service"
LAUNCHER = DEPLOY / "ray" / "cluster.yaml"


def _loaded(path):
    return yaml.safe_load(path.read_text("utf-8"))


def _changed(path, old, new):
    text = path.read_text("utf-8")
    assert old in text
    return text.replace(old, new)


def test_everything_in_deploy_is_right():
    """Each document of each overlay, each overlay as a whole, each other file; what `make check-deploy` counts."""
    counted = count()
    names = [one.name for one in every()]
    assert counted.refused == {}
    assert counted.valid + len(counted.not_checked) == len(names) == len(set(names))
    if counted.not_checked:
        pytest.skip(f"not checked: {counted.not_checked}")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("    shm_size: 2gb\n", "    shm_sise: 2gb\n", "shm_sise"),
        ("shm_size: 2gb", "shm_size: 2 gigabytes", "shm_size"),
        ("shm_size: 2gb", "shm_size: 1gb", "do not fit"),
        ("mem_limit: 8gb", "mem_limit: 3gb", "do not fit"),
        ("127.0.0.1:3000:3000", "3000:3000", "ports"),
        ("${GRAFANA_ADMIN_PASSWORD:?choose a password in .env}", "admin", "has a value"),
        (
            "${RAY_AUTH_TOKEN:?make one - openssl rand -hex 32 - and put it into .env}",
            "${RAY_AUTH_TOKEN:-x}",
            "has a value",
        ),
        ("grafana/grafana:12.1.0", "grafana/grafana:latest", "another image"),
        ("grafana/grafana:12.1.0", "grafana/grafana", "another image"),
        ("image: rayguard:0.1.0", "image: rayguard:9.9.9", "not version"),
        ("      head:\n        condition", "      had:\n        condition", "no service"),
        ("../grafana/dashboards:", "../grafana/dashbords:", "not there to be mounted"),
        ("../prometheus:/etc/prometheus/rules", "../prometheus:/etc/prometheus/rulez", "no rules"),
        ("/var/lib/grafana/dashboards/rayguard:", "/var/lib/grafana/boards:", "no dashboards"),
        ("http://prometheus:9090\n", "http://prometheus:9091\n", "not our Prometheus"),
        ("  prometheus: {}\n", "", "not declared"),
        ("  grafana: {}\n", "  grafana: {}\n  forgotten: {}\n", "used by nobody"),
        ("stop_grace_period: 45s", "stop_grace_period: 10s", "drains for"),
        ("RAYGUARD_AGENT_PORT", "RAYGUARD_AGENTPORT", "nobody reads"),
        ('RAYGUARD_AGENT_PORT: "44317"', 'RAYGUARD_AGENT_PORT: "44318"', "no agent answers"),
        (
            "rayguard.cluster.plugin.RayguardPlugin",
            "rayguard.cluster.plugins.RayguardPlugin",
            "loads no rayguard",
        ),
        ("ray start --block", "ray start", "--block"),
        ("cap_drop: [ALL]", "cap_drop: []", "cap_drop"),
        ("  worker:\n", "  helper:\n", "Ray runs in"),
        ("dockerfile: deploy/docker/Dockerfile", "dockerfile: Dockerfile", "not there to be built"),
    ],
)
def test_a_wrong_compose_file_is_refused(old, new, says):
    """Misspelled, open to the network, with a password in it, or at odds with the files it mounts."""
    found = compose_file.complaints(_changed(COMPOSE, old, new), COMPOSE.parent)
    assert any(says in one for one in found), found


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("OOMPolicy=continue\n", "", "OOMPolicy"),
        ("KillMode=mixed", "KillMode=control-group", "KillMode"),
        ("NoNewPrivileges=yes", "NoNewPrivileges=yes\nPrivateDevices=yes", "PrivateDevices takes away"),
        ("User=ray", "User=root", "as root"),
        (" --block", "", "loses sight"),
        ("${RAY_HEAD_ADDRESS}", "${RAY_HEAD}", "RAY_HEAD is not set"),
        ("TimeoutStopSec=120", "TimeoutStopSec=60", "while it drains"),
        ("LoadCredential=", "SetCredential=", "LoadCredential"),
    ],
)
def test_a_wrong_unit_is_refused(old, new, says):
    """What would kill the node for one worker's memory, or hide the GPUs."""
    variables = surroundings.file((WORKER.parent / "rayguard.env").read_text("utf-8"))
    found = hosts.unit(_changed(WORKER, old, new), variables)
    assert any(says in one for one in found), found


def test_systemd_refuses_what_it_does_not_know(tmp_path):
    """Its own verifier is asked, and its warnings count."""
    wrong = tmp_path / WORKER.name
    wrong.write_text(_changed(WORKER, "Restart=always", "Restart=forever"))
    try:
        assert any("restart specifier" in one for one in hosts.verified(wrong))
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("available_node_types:", "available_node_kinds:", "available_node_kinds"),
        ("max_workers: 4\nidle", "max_workers: four\nidle", "four"),
        ("head_node_type: head", "head_node_type: other", "head_node_type"),
        ("ray[default]==2.60.0", "ray[default]==2.0.0", "install no"),
        (". ~/rayguard.env", ". ~/ray.env", "does not see rayguard.env"),
        ("./rayguard.env", "./missing.env", "not there"),
    ],
)
def test_a_wrong_launcher_configuration_is_refused(old, new, says):
    """By Ray's own loader, or because rayguard would not be on."""
    found = hosts.launcher(yaml.safe_load(_changed(LAUNCHER, old, new)), LAUNCHER.parent)
    assert any(says in one for one in found), found


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("USER 1000:1000\n", "", "last USER"),
        ("USER 1000:1000", "USER root", "last USER"),
        ("python:3.11.14-slim-bookworm", "python:latest", "another image"),
        ("python:3.11.14-slim-bookworm", "python", "another image"),
        ("COPY rayguard rayguard", "ADD https://example.com/rayguard.tgz rayguard", "ADD"),
        ('ARG EXTRA=""', "ARG HF_TOKEN", "secret"),
        ("RAY_VERSION=2.60.0", "RAY_VERSION=2.59.0", "RAY_VERSION"),
        ('--constraint "/requirements/${CONSTRAINTS}"', "", "--constraint"),
    ],
)
def test_a_wrong_dockerfile_is_refused(old, new, says):
    """Root, a moving base, a secret in the history."""
    found = hosts.dockerfile(_changed(DEPLOY / "docker" / "Dockerfile", old, new))
    assert any(says in one for one in found), found


def test_promtool_refuses_a_wrong_rule(tmp_path):
    """A query that does not parse."""
    rules = DEPLOY / "prometheus" / "rayguard.rules.yml"
    wrong = tmp_path / rules.name
    wrong.write_text(rules.read_text("utf-8").replace("expr: ", "expr: ((", 1))
    try:
        assert promtool("rules", wrong)
    except NotHereError as error:
        pytest.skip(str(error))


def test_kubernetes_gets_the_same_rules_and_dashboards():
    """As the files that Prometheus and Grafana read; nobody edits them by hand."""
    rules = [DEPLOY / "prometheus" / f"rayguard.{what}.yml" for what in ("rules", "alerts")]
    boards = sorted(path.name for path in (DEPLOY / "grafana" / "dashboards").glob("*.json"))
    for path, made in {
        "kubernetes/monitoring/prometheusrule.yaml": kubernetes_files.prometheus_rule(map(_loaded, rules)),
        "grafana/kustomization.yaml": kubernetes_files.dashboards(boards),
    }.items():
        assert _loaded(DEPLOY / path) == made, "run `python -m deploy.generate`"


def test_the_operator_gets_every_rule():
    """Groups of both files, rules before the alerts that stand on them."""
    made = kubernetes_files.prometheus_rule(
        [{"groups": [{"name": "a"}]}, {"groups": [{"name": "b"}, {"name": "c"}]}]
    )
    assert [group["name"] for group in made["spec"]["groups"]] == ["a", "b", "c"]


def test_no_dashboard_is_too_big_to_apply():
    """`kubectl apply` keeps the whole object in an annotation of at most 262,144 bytes, escaped."""
    for path in (DEPLOY / "grafana" / "dashboards").glob("*.json"):
        assert path.stat().st_size * 1.3 < 262_144


def test_the_jobs_configuration_is_one_that_the_plugin_takes():
    """The key under `runtimeEnvYAML`, as a user would copy it."""
    job = yaml.safe_load((KUBERNETES / "job" / "rayjob.yaml").read_text("utf-8"))
    assert asked(yaml.safe_load(job["spec"]["runtimeEnvYAML"])["rayguard"]) is not None


@pytest.mark.ray
def test_the_jobs_program_runs_on_plain_ray(monkeypatch, capsys):
    """It knows nothing of rayguard: the manifest's stand-in for a user's training."""
    connect = functools.partial(ray.init, address="local", num_cpus=2, include_dashboard=False)
    monkeypatch.setattr(ray, "init", connect)
    monkeypatch.setenv("ROLLOUTS", "8")
    try:
        runpy.run_path(str(KUBERNETES / "job" / "train.py"), run_name="__main__")
    finally:
        ray.shutdown()
    assert "8 rollouts by 2 workers" in capsys.readouterr().out
