"""Machines without Kubernetes: systemd units, Ray's cluster launcher, the image. Each check returns complaints."""

from __future__ import annotations

import configparser
import copy
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.deploy import surroundings

# Each of them takes from Ray or CUDA what they need; the unit says why.
_BREAKS_RAY = {"PrivateTmp", "PrivateDevices", "ProtectClock", "MemoryDenyWriteExecute", "ProtectKernelLogs"}
_WANTED = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "full",
    "OOMPolicy": "continue",
    "KillMode": "mixed",
    "Restart": "always",
    "LoadCredential": "ray_auth_token:/etc/rayguard/ray_auth_token",
}


def unit(text: str, variables: dict[str, str]) -> list[str]:
    """Return what is wrong with a unit that is started with ``variables``."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    service = dict(parser["Service"])
    found = [f"{key} takes away what Ray needs" for key in sorted(_BREAKS_RAY & set(service))]
    found += [f"{key} should be {value!r}" for key, value in _WANTED.items() if service.get(key) != value]
    if service.get("User", "root") == "root":
        found.append("Ray runs as root")
    if not re.fullmatch(r"/\S+/ray start .*--block", service["ExecStart"]):
        found.append(f"systemd loses sight of Ray: {service['ExecStart']}")
    found += [
        f"{name} is not set"
        for name in re.findall(r"\$\{(\w+)\}", service["ExecStart"])
        if name not in variables
    ]
    if float(service["TimeoutStopSec"]) < float(variables["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]) + 10:
        found.append("systemd kills Ray while it drains")
    return found + surroundings.complaints({**variables, "RAY_AUTH_TOKEN_PATH": None})


def verified(path: Path) -> list[str]:
    """Return what systemd itself says of a unit; the programs it starts need not be installed.

    Raises ``FileNotFoundError`` without systemd-analyze.
    """
    with tempfile.TemporaryDirectory() as directory:
        copied = Path(directory) / path.name
        copied.write_text(
            re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", path.read_text("utf-8"), flags=re.MULTILINE),
            "utf-8",
        )
        if not (program := shutil.which("systemd-analyze")):
            raise FileNotFoundError("systemd-analyze is not installed")
        done = subprocess.run(
            [program, "verify", "--man=no", str(copied)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    # It warns about the machine's own units too.
    said = [line for line in done.stderr.splitlines() if path.stem in line]
    return said or ([done.stderr.strip() or "systemd-analyze refuses it"] if done.returncode else [])


def launcher(config: dict[str, Any], directory: Path) -> list[str]:
    """Return what Ray's own loader, and we, find wrong with a cluster launcher's configuration."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    try:
        prepared = prepare_config(copy.deepcopy(config))
        validate_config(prepared)
    except Exception as error:  # whatever Ray raises: ValueError, jsonschema's, KeyError
        return [f"{type(error).__name__}: {error}"[:500]]
    found = [
        f"{name}: `ray start` does not see rayguard.env"
        for name in ("head_start_ray_commands", "worker_start_ray_commands")
        if not any("rayguard.env" in one and "ray start" in one for one in config.get(name, ()))
    ]
    for there, here in config.get("file_mounts", {}).items():
        if here.startswith(".") and not (directory / here).exists():
            found.append(f"file_mounts: {here} is not there to become {there}")
    installed = " ".join(config.get("setup_commands", ()))
    pins = (f"ray[default]=={surroundings.ray_version()}'", f"rayguard[vllm]=={surroundings.version()}'")
    return found + [f"setup_commands install no {pin[:-1]}" for pin in pins if pin not in installed]


def dockerfile(text: str) -> list[str]:
    """Return what is wrong with a Dockerfile by the few rules that matter most."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    steps = [(line.split()[0].upper(), line.partition(" ")[2].strip()) for line in lines if line.strip()]
    arguments = dict(value.partition("=")[::2] for step, value in steps if step == "ARG")
    stages = [value for step, value in steps if step == "FROM"]
    found = []
    for stage in stages:
        base = re.sub(r"\$\{(\w+)\}", lambda named: arguments.get(named[1], ""), stage.split()[0])
        found += surroundings.image_complaints(base)
    if len(stages) < 2:
        found.append("what builds it stays in the image: one stage only")
    last = [step for step, _ in steps][-1 - [step for step, _ in reversed(steps)].index("FROM") :]
    users = [value for step, value in steps[-len(last) :] if step == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        found.append(f"the last USER must be a number other than 0, for runAsNonRoot: {users}")
    if any(step == "ADD" for step, _ in steps):
        found.append("ADD fetches and unpacks: use COPY")
    if any(re.search(r"TOKEN|PASSWORD|SECRET", value) for step, value in steps if step in ("ARG", "ENV")):
        found.append("a secret stays in the image's history")
    if arguments.get("RAY_VERSION") != surroundings.ray_version():
        found.append(f"RAY_VERSION is not {surroundings.ray_version()}")
    if any(re.search(r"pip install(?!.*--constraint)", value) for step, value in steps if step == "RUN"):
        found.append("pip installs what it likes: no --constraint")
    return found
