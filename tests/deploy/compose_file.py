"""Is the compose file right, in itself and with the files that it mounts?

No package here brings compose's own schema: the part of it that we use is written down as a strict model.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tests.deploy import surroundings
from tests.deploy.kinds import Duration, mistakes

_SIZE = {"mb": 2**20, "gb": 2**30}
_ASKED_FOR = re.compile(r"\$\{[A-Z_]+:\?[^}]+\}")
_SECRET = re.compile(r"TOKEN$|PASSWORD$|SECRET|_USER$")
Size = Annotated[str, Field(pattern=r"^[0-9]+(mb|gb)$")]
Loopback = Annotated[str, Field(pattern=r"^127\.0\.0\.1:[0-9]+:[0-9]+$")]
Mount = Annotated[str, Field(pattern=r"^(\.{1,2}/[\w./-]+:/[\w./-]+:ro|[a-z-]+:/[\w./-]+)$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Healthcheck(_Strict):
    """How compose learns that a service works."""

    test: Annotated[list[str], Field(min_length=2)]
    interval: Duration
    timeout: Duration
    retries: Annotated[int, Field(ge=1)]
    start_period: Duration | None = None

    @model_validator(mode="after")
    def _is_a_command(self) -> Healthcheck:
        if self.test[0] != "CMD":
            raise ValueError("a healthcheck is a CMD with arguments: no shell")
        return self


class Build(_Strict):
    """Where the image comes from when it is not pulled."""

    context: str
    dockerfile: str


class After(_Strict):
    """What a service waits for."""

    condition: Literal["service_healthy"]


class Service(_Strict):
    """One kind of container, published on loopback alone and without capabilities."""

    image: str
    healthcheck: Healthcheck
    restart: Literal["unless-stopped"]
    cap_drop: Annotated[list[Literal["ALL"]], Field(min_length=1)]
    security_opt: Annotated[list[Literal["no-new-privileges:true"]], Field(min_length=1)]
    build: Build | None = None
    init: bool | None = None
    command: str | list[str] | None = None
    environment: dict[str, str] = {}
    ports: list[Loopback] = []
    volumes: list[Mount] = []
    depends_on: dict[str, After] = {}
    shm_size: Size | None = None
    mem_limit: Size | None = None
    stop_grace_period: Duration | None = None


class Compose(_Strict):
    """The whole file, ``x-`` blocks left out: they are merged by YAML."""

    name: str
    services: Annotated[dict[str, Service], Field(min_length=1)]
    volumes: dict[str, dict[str, str]] = {}


def complaints(text: str, directory: Path) -> list[str]:
    """Return what is wrong with the compose file ``text`` that lies in ``directory``."""
    said = {key: value for key, value in yaml.safe_load(text).items() if not key.startswith("x-")}
    try:
        file = Compose.model_validate(said)
    except ValidationError as error:
        return mistakes(error)
    found = [
        f"volume {name!r} is used by nobody"
        for name in file.volumes
        if f"{name}:" not in text.partition("\nvolumes:")[0]
    ]
    for name, service in file.services.items():
        found += [f"{name}: {one}" for one in _wrong_with(service, file, directory)]
    return found + _scrape(file, directory)


def _wrong_with(service: Service, file: Compose, directory: Path) -> list[str]:
    found = surroundings.image_complaints(service.image)
    found += [
        f"it waits for {one!r}, which is no service" for one in service.depends_on if one not in file.services
    ]
    found += [
        f"{name} has a value in the file"
        for name, value in service.environment.items()
        if _SECRET.search(name) and not _ASKED_FOR.fullmatch(value)
    ]
    for source, target in (mount.split(":")[:2] for mount in service.volumes):
        if source.startswith(".") and not (directory / source).exists():
            found.append(f"{source} is not there to be mounted at {target}")
        if not source.startswith(".") and source not in file.volumes:
            found.append(f"volume {source!r} is not declared")
    if service.build and not (directory / service.build.context / service.build.dockerfile).exists():
        found.append(f"{service.build.dockerfile} is not there to be built")
    return found + (_wrong_with_ray(service) if "ray start" in str(service.command) else [])


def _wrong_with_ray(service: Service) -> list[str]:
    found = surroundings.complaints(dict(service.environment))
    store = re.search(r"--object-store-memory=(\d+)", str(service.command))
    shm, memory = bytes_of(service.shm_size), bytes_of(service.mem_limit)
    if not store or int(store[1]) >= shm or shm * 2 > memory:
        found.append(f"object store in /dev/shm ({shm}) in memory ({memory}) do not fit")
    if "--block" not in str(service.command):
        found.append("the container ends with `ray start`: it wants --block")
    drain = float(service.environment.get("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", 0))
    if drain + 10 > float((service.stop_grace_period or "0s").removesuffix("s")):
        found.append(f"Ray drains for {drain} s of a grace of {service.stop_grace_period}")
    return found


def bytes_of(size: str | None) -> int:
    """Return the bytes of ``2gb``; 0 of None."""
    return int(size[:-2]) * _SIZE[size[-2:]] if size else 0


def _scrape(file: Compose, directory: Path) -> list[str]:
    """Prometheus must ask the nodes where their agents answer, and find rules and dashboards where they lie."""
    config = yaml.safe_load((directory / "prometheus.yml").read_text("utf-8"))
    ray = {name: one for name, one in file.services.items() if "ray start" in str(one.command)}
    found = []
    for job in (job for job in config["scrape_configs"] if job["job_name"] == "rayguard"):
        (targets,) = job["dns_sd_configs"]
        if set(targets["names"]) != set(ray):
            found.append(f"Prometheus asks {targets['names']}, Ray runs in {sorted(ray)}")
        if any(one.environment.get("RAYGUARD_AGENT_PORT") != str(targets["port"]) for one in ray.values()):
            found.append(f"Prometheus asks port {targets['port']}, where no agent answers")
        break
    else:
        found.append("Prometheus has no job rayguard, which alerts and dashboards ask for")
    found += [
        f"Prometheus finds no rules at {pattern}"
        for pattern in config["rule_files"]
        if not _matched(pattern, file.services["prometheus"], directory)
    ]
    return found + _dashboards(file.services["grafana"], directory)


def _matched(pattern: str, service: Service, directory: Path) -> bool:
    """Say whether a path inside the container names a file that is mounted there."""
    for source, target in (mount.split(":")[:2] for mount in service.volumes):
        if source.startswith(".") and pattern.startswith(f"{target}/"):
            return any((directory / source).glob(pattern.removeprefix(f"{target}/")))
    return False


def _dashboards(grafana: Service, directory: Path) -> list[str]:
    provisioning = directory.parent / "grafana" / "provisioning"
    found = []
    for path in sorted(provisioning.glob("dashboards/*.y*ml")):
        for provider in yaml.safe_load(path.read_text("utf-8"))["providers"]:
            where = provider["options"]["path"]
            found += [f"no dashboards at {where}"] * (not _matched(f"{where}/*.json", grafana, directory))
    for path in sorted(provisioning.glob("datasources/*.y*ml")):
        for source in yaml.safe_load(path.read_text("utf-8"))["datasources"]:
            named = source["url"].strip("${}")
            if grafana.environment.get(named, source["url"]) != "http://prometheus:9090":
                found.append(f"{path.name}: {source['url']} is not our Prometheus")
    return found
