"""Do the documents of one overlay fit together? Names that point nowhere, limits that contradict, rights too wide.

What a schema cannot see. Each check takes all documents of one ``kustomize build`` and returns complaints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.deploy import surroundings
from tests.deploy.kustomize import containers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.deploy.kustomize import Document

# Made by hand before the first `apply` (README.md): in no file.
SECRETS = {"rayguard-ray-token"}
_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_SECRET = re.compile(r"TOKEN|PASSWORD|SECRET|KEY")


@dataclass(frozen=True, slots=True)
class Pod:
    """A group's pod, as KubeRay will make it."""

    group: str
    labels: dict[str, str]
    spec: Document
    start: dict[str, str]

    @property
    def ray(self) -> Document:
        """Return the container that Ray runs in: KubeRay takes the first."""
        return self.spec["containers"][0]

    def ports(self) -> dict[str, int]:
        """Return the named ports of all containers."""
        found = (port for one in self.spec["containers"] for port in one.get("ports", ()))
        return {port["name"]: port["containerPort"] for port in found}


def pods(documents: list[Document]) -> Iterator[Pod]:
    """Yield the pods of all Ray clusters in ``documents``."""
    for document in documents:
        if document["kind"] not in ("RayCluster", "RayJob"):
            continue
        spec = document["spec"] if document["kind"] == "RayCluster" else document["spec"]["rayClusterSpec"]
        yield _pod("head", spec["headGroupSpec"])
        for group in spec["workerGroupSpecs"]:
            yield _pod("worker", group)


def _pod(kind: str, group: Document) -> Pod:
    template = group["template"]
    given = {"ray.io/node-type": kind, "ray.io/is-ray-node": "yes", "app.kubernetes.io/name": "kuberay"}
    labels = {**given, **template.get("metadata", {}).get("labels", {})}
    return Pod(group.get("groupName", kind), labels, template["spec"], group.get("rayStartParams", {}))


def contradictions(documents: list[Document]) -> list[str]:
    """Return everything that does not fit together."""
    found = [*_selectors(documents), *_namespaces(documents), *_no_secrets(documents)]
    for pod in pods(documents):
        each = [*_references(pod, documents), *_environment(pod, documents), *_memory(pod), *_confined(pod)]
        found += [f"pods of {pod.group}: {one}" for one in [*each, *_mounts(pod), *_probes(pod), *_end(pod)]]
    return found


def _by_name(documents: list[Document], kind: str) -> dict[str, Document]:
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


def _references(pod: Pod, documents: list[Document]) -> Iterator[str]:
    maps = _by_name(documents, "ConfigMap")
    for named in [one["configMapRef"]["name"] for one in pod.ray.get("envFrom", ())] + [
        volume["configMap"]["name"] for volume in pod.spec.get("volumes", ()) if "configMap" in volume
    ]:
        if named not in maps:
            yield f"there is no ConfigMap {named!r}"
    if (account := pod.spec.get("serviceAccountName")) not in _by_name(documents, "ServiceAccount"):
        yield f"there is no ServiceAccount {account!r}"


def environment(pod: Pod, documents: list[Document]) -> dict[str, Any]:
    """Return what the Ray container is started with; None where only the pod itself will know it."""
    maps = _by_name(documents, "ConfigMap")
    said: dict[str, Any] = {}
    for source in pod.ray.get("envFrom", ()):
        said.update(maps.get(source["configMapRef"]["name"], {}).get("data", {}))
    return {**said, **{one["name"]: one.get("value") for one in pod.ray.get("env", ())}}


def _environment(pod: Pod, documents: list[Document]) -> Iterator[str]:
    said = environment(pod, documents)
    yield from surroundings.complaints(said)
    if str(pod.ports().get("rayguard")) != said.get("RAYGUARD_AGENT_PORT"):
        yield f"port rayguard is not RAYGUARD_AGENT_PORT ({said.get('RAYGUARD_AGENT_PORT')})"


def _memory(pod: Pod) -> Iterator[str]:
    resources = pod.ray["resources"]
    limit, wanted = amount(resources["limits"]["memory"]), amount(resources["requests"]["memory"])
    shm = next(
        (amount(one["emptyDir"]["sizeLimit"]) for one in pod.spec["volumes"] if one["name"] == "shm"), 0
    )
    store = int(pod.start.get("object-store-memory", 0))
    if wanted > limit:
        yield f"it asks for more memory ({wanted}) than its limit ({limit})"
    if not 0 < store < shm:
        yield f"the object store ({store}) does not fit into /dev/shm ({shm})"
    if shm * 2 > limit:
        yield f"/dev/shm ({shm}) takes more than half of the memory ({limit})"
    devices = {key: value for key, value in resources["limits"].items() if "/" in key}
    if devices != {key: value for key, value in resources["requests"].items() if "/" in key}:
        yield f"devices must be asked for and limited alike: {devices}"


def amount(quantity: str) -> int:
    """Return the bytes of a Kubernetes quantity such as ``6Gi``."""
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", quantity).groups()  # type: ignore[union-attr]
    return int(number) * _UNITS[unit]


def _confined(pod: Pod) -> Iterator[str]:
    """Yield what the "restricted" Pod Security Standard, and we beyond it, would not let in."""
    whole, own = pod.spec.get("securityContext", {}), pod.ray.get("securityContext", {})
    if pod.spec.get("automountServiceAccountToken") is not False:
        yield "it mounts a service account's token that nobody needs"
    if any(pod.spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
        yield "it shares the host's namespaces"
    if not whole.get("runAsNonRoot") or not whole.get("runAsUser"):
        yield "it may run as root"
    if whole.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "it has no seccomp profile"
    if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
        yield "it may gain privileges"
    if own.get("readOnlyRootFilesystem") is not True:
        yield "its root file system can be written"
    if own.get("capabilities") != {"drop": ["ALL"]}:
        yield f"it keeps capabilities: {own.get('capabilities')}"
    yield from surroundings.image_complaints(pod.ray["image"])


def _mounts(pod: Pod) -> Iterator[str]:
    volumes, mounts = ({one["name"] for one in of} for of in (pod.spec["volumes"], pod.ray["volumeMounts"]))
    if volumes != mounts:
        yield f"volumes {sorted(volumes)} are mounted as {sorted(mounts)}"
    where = {one["mountPath"]: one["name"] for one in pod.ray["volumeMounts"]}
    # The root is read-only: what Ray, rayguard and model caches write must be volumes.
    if missing := {"/dev/shm", "/tmp", "/home/ray", "/var/lib/rayguard"} - set(where):
        yield f"nothing to write on at {sorted(missing)}"
    medium = {one["name"]: one.get("emptyDir", {}).get("medium") for one in pod.spec["volumes"]}
    if medium.get(where.get("/dev/shm", "")) != "Memory":
        yield "/dev/shm is not in memory"


def _probes(pod: Pod) -> Iterator[str]:
    for name in ("livenessProbe", "readinessProbe"):
        probe = pod.ray[name]
        if probe["httpGet"]["port"] not in pod.ports():
            yield f"{name} asks a port that is not there: {probe['httpGet']['port']}"
    patience_s = pod.ray["livenessProbe"]["periodSeconds"] * pod.ray["livenessProbe"]["failureThreshold"]
    if patience_s < 300:
        yield f"a node that is busy for {patience_s} s is killed"


def _end(pod: Pod) -> Iterator[str]:
    drain = next(
        (one["value"] for one in pod.ray["env"] if one["name"] == "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"), 0
    )
    if not 0 < float(drain) <= pod.spec["terminationGracePeriodSeconds"] - 10:
        yield f"Ray drains for {drain} s of a grace of {pod.spec['terminationGracePeriodSeconds']} s"


def _selectors(documents: list[Document]) -> Iterator[str]:
    made = list(pods(documents))
    asks = {
        "NetworkPolicy": _policy,
        "PodDisruptionBudget": _protected,
        "PodMonitor": _scraped,
        "Service": _served,
    }
    for document in documents:
        kind, spec = document["kind"], document.get("spec", {})
        if kind == "ServiceMonitor":
            yield from _monitored(spec, documents)
        elif kind in asks:
            selector = spec.get("podSelector") or spec["selector"]
            yield from asks[kind](spec, _chosen(made, selector.get("matchLabels", selector)), made)
    if {"PodMonitor", "ServiceMonitor"} <= {one["kind"] for one in documents}:
        yield "PodMonitor and ServiceMonitor count each target twice"


def _chosen(made: list[Pod], labels: dict[str, str]) -> list[Pod]:
    return [pod for pod in made if labels.items() <= pod.labels.items()]


def _protected(_spec: Document, chosen: list[Pod], _made: list[Pod]) -> Iterator[str]:
    if not chosen:
        yield "PodDisruptionBudget protects no pod"


def _policy(spec: Document, chosen: list[Pod], _made: list[Pod]) -> Iterator[str]:
    if not chosen:
        yield "NetworkPolicy guards no pod"
    for rule in spec["ingress"]:
        if not rule.get("from"):
            yield "NetworkPolicy lets everybody in"
        for port in rule.get("ports", ()):
            if chosen and not any(port["port"] in pod.ports() for pod in chosen):
                yield f"NetworkPolicy opens a port that no pod has: {port['port']}"
        inside = all(
            "namespaceSelector" not in peer and "ipBlock" not in peer for peer in rule.get("from", ())
        )
        if not inside and not rule.get("ports"):
            yield "NetworkPolicy opens every port to another namespace"


def _scraped(spec: Document, chosen: list[Pod], made: list[Pod]) -> Iterator[str]:
    if missing := [pod.group for pod in made if pod not in chosen]:
        yield f"PodMonitor leaves out the pods of {missing}"
    for endpoint in spec["podMetricsEndpoints"]:
        if blind := [pod.group for pod in chosen if endpoint["port"] not in pod.ports()]:
            yield f"PodMonitor scrapes port {endpoint['port']!r}, which pods of {blind} do not have"
    yield from _job(spec["podMetricsEndpoints"])


def _served(spec: Document, chosen: list[Pod], made: list[Pod]) -> Iterator[str]:
    if missing := [pod.group for pod in made if pod not in chosen]:
        yield f"Service leaves out the pods of {missing}"
    for port in spec["ports"]:
        if any(port["targetPort"] not in pod.ports() for pod in chosen):
            yield f"Service leads to a port that a pod does not have: {port['targetPort']}"


def _monitored(spec: Document, documents: list[Document]) -> Iterator[str]:
    wanted = spec["selector"]["matchLabels"].items()
    chosen = [
        one for one in documents if one["kind"] == "Service" and wanted <= one["metadata"]["labels"].items()
    ]
    if not chosen:
        yield "ServiceMonitor selects no Service"
    for endpoint in spec["endpoints"]:
        if any(endpoint["port"] not in [port["name"] for port in one["spec"]["ports"]] for one in chosen):
            yield f"ServiceMonitor scrapes port {endpoint['port']!r}, which its Service does not have"
    yield from _job(spec["endpoints"])


def _job(endpoints: list[Document]) -> Iterator[str]:
    named = {"targetLabel": "job", "replacement": "rayguard"}
    if any(named not in endpoint.get("relabelings", ()) for endpoint in endpoints):
        yield "targets are not called job=rayguard, as alerts and dashboards ask"


def _namespaces(documents: list[Document]) -> Iterator[str]:
    stated = {one["metadata"].get("namespace") for one in documents if one["kind"] != "Namespace"}
    if stated != {None} and stated != set(_by_name(documents, "Namespace")):
        yield f"namespaces {stated} are used, {set(_by_name(documents, 'Namespace'))} are made"


def _no_secrets(documents: list[Document]) -> Iterator[str]:
    if _by_name(documents, "Secret"):
        yield "a Secret lies in a file"
    for document in documents:
        spec = document.get("spec", {})
        auth = spec.get("rayClusterSpec", spec).get("authOptions", {})
        if document["kind"] in ("RayCluster", "RayJob") and (
            auth.get("mode") != "token" or auth.get("secretName") not in SECRETS
        ):
            yield f"{document['kind']}: Ray's token is not taken from {SECRETS}"
    for container in containers(documents):
        for one in container.get("env", ()):
            if _SECRET.search(one["name"]) and "value" in one:
                yield f"{one['name']} stands in a file"
