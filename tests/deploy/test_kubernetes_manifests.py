"""The Kubernetes manifests are valid and fit together; and each check refuses a document that is not, or does not."""

import copy

import pytest

from tests.deploy import cross, kinds
from tests.deploy.checks import KUBERNETES, OVERLAYS
from tests.deploy.kustomize import build


@pytest.fixture(scope="module")
def built():
    return {name: build(KUBERNETES / "overlays" / name) for name in OVERLAYS}


@pytest.fixture
def gpu(built):
    return copy.deepcopy(built["gpu"])


def _one(documents, kind):
    return next(one for one in documents if one["kind"] == kind)


def _at(document, path, *value):
    """Set ``path`` of ``document`` to ``value``, or take it away without one."""
    *way, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    for key in way:
        document = document[key]
    if value:
        document[last] = value[0]
    else:
        del document[last]


def _complaints(document):
    try:
        return kinds.complaints(document)
    except kinds.SchemaMissingError as error:
        pytest.skip(str(error))


def test_scraping_by_service_fits_too(built):
    """The other way to be scraped, for those whose Prometheus selects ServiceMonitors only."""
    cluster = [one for one in built["dev"] if one["kind"] != "Namespace"]
    monitoring = build(KUBERNETES / "monitoring-by-service")
    for one in monitoring:
        assert _complaints(one) == []
        one["metadata"]["namespace"] = "rayguard-dev"
    assert cross.contradictions([*cluster, *monitoring, _one(built["dev"], "Namespace")]) == []
    _at(_one(monitoring, "Service"), "spec/ports/0/name", "other")
    assert cross.contradictions([*cluster, *monitoring, _one(built["dev"], "Namespace")])


def test_a_job_brings_the_cluster_of_the_base(built):
    """One description of the cluster for both, and no second cluster beside the job's own."""
    job = _one(built["job"], "RayJob")
    assert not [one for one in built["job"] if one["kind"] == "RayCluster"]
    workers = _one(build(KUBERNETES / "base"), "RayCluster")["spec"]["workerGroupSpecs"]
    assert job["spec"]["rayClusterSpec"]["workerGroupSpecs"] == workers
    assert job["spec"]["entrypoint"].endswith("train.py")


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("RayCluster", "spec/headGroupSpec/tempalte", [{}]),
        (
            "RayCluster",
            "spec/headGroupSpec/template/spec/containers/0/livenessProbe/httpGet/prot",
            ["health"],
        ),
        ("RayCluster", "spec/workerGroupSpecs/0/replicas", ["2"]),
        ("RayCluster", "spec/workerGroupSpecs/0/groupName", []),
        ("RayCluster", "spec/authOptions/mode", ["tokens"]),
        ("RayCluster", "apiVersion", ["ray.io/v2"]),
        ("NetworkPolicy", "spec/ingres", [[]]),
        ("NetworkPolicy", "spec/ingress/2/ports/0/port", [["rayguard"]]),
        ("PodDisruptionBudget", "spec/maxUnavailable", [[1]]),
        ("ConfigMap", "data/RAYGUARD_AGENT_PORT", [44317]),
        ("ServiceAccount", "automountServiceAccountToken", ["no"]),
        ("Namespace", "apiVersion", ["v2"]),
        ("Namespace", "kind", ["Namespaces"]),
        ("PodMonitor", "spec/podMetricsEndpoints/0/intervall", ["15s"]),
        ("PodMonitor", "spec/podMetricsEndpoints/0/interval", ["15 s"]),
        ("PodMonitor", "spec/podMetricsEndpoints/0/relabelings/0/targetLabel", ["job-name"]),
        ("PodMonitor", "spec/selector", []),
        ("PrometheusRule", "spec/groups/0/rules/0/expr", []),
        ("PrometheusRule", "spec/groups/0/rules/0/alert", ["Both"]),
        ("PrometheusRule", "spec/groups/0/interval", ["soon"]),
        ("PrometheusRule", "kind", ["PrometheusRules"]),
    ],
)
def test_an_invalid_document_is_refused(gpu, kind, path, value):
    """A misspelled field, a wrong type, a missing one, a kind or version that does not exist."""
    document = _one(gpu, kind)
    assert _complaints(document) == []
    _at(document, path, *value)
    assert _complaints(document)


HEAD = "spec/headGroupSpec/template/spec"
WORKER = "spec/workerGroupSpecs/0/template/spec"


@pytest.mark.parametrize(
    ("kind", "path", "value", "says"),
    [
        ("RayCluster", f"{HEAD}/containers/0/envFrom/0/configMapRef/name", ["other"], "no ConfigMap"),
        ("RayCluster", f"{HEAD}/serviceAccountName", ["other"], "no ServiceAccount"),
        ("RayCluster", f"{HEAD}/automountServiceAccountToken", [], "token that nobody needs"),
        ("RayCluster", f"{HEAD}/hostPID", [True], "host's namespaces"),
        ("RayCluster", f"{HEAD}/securityContext/runAsUser", [0], "as root"),
        ("RayCluster", f"{WORKER}/securityContext/seccompProfile", [], "seccomp"),
        (
            "RayCluster",
            f"{WORKER}/containers/0/securityContext/allowPrivilegeEscalation",
            [],
            "gain privileges",
        ),
        (
            "RayCluster",
            f"{WORKER}/containers/0/securityContext/readOnlyRootFilesystem",
            [False],
            "can be written",
        ),
        (
            "RayCluster",
            f"{WORKER}/containers/0/securityContext/capabilities/add",
            [["SYS_PTRACE"]],
            "capabilities",
        ),
        ("RayCluster", f"{WORKER}/containers/0/image", ["rayguard:latest"], "another image"),
        ("RayCluster", f"{WORKER}/containers/0/image", ["rayguard"], "another image"),
        ("RayCluster", f"{WORKER}/containers/0/image", ["rayguard:0.0.1"], "not version"),
        ("RayCluster", f"{WORKER}/containers/0/volumeMounts/0/name", ["other"], "are mounted as"),
        ("RayCluster", f"{WORKER}/containers/0/volumeMounts/1/mountPath", ["/temp"], "nothing to write on"),
        ("RayCluster", f"{WORKER}/volumes/0/emptyDir/medium", [], "not in memory"),
        ("RayCluster", f"{WORKER}/volumes/0/emptyDir/sizeLimit", ["1Gi"], "does not fit"),
        ("RayCluster", f"{WORKER}/containers/0/resources/limits/memory", ["30Gi"], "more memory"),
        ("RayCluster", f"{WORKER}/containers/0/resources/limits/memory", ["40Gi"], "more than half"),
        ("RayCluster", f"{WORKER}/containers/0/resources/requests/nvidia.com~gpu", ["2"], "devices"),
        (
            "RayCluster",
            f"{WORKER}/containers/0/readinessProbe/httpGet/port",
            ["helth"],
            "port that is not there",
        ),
        ("RayCluster", f"{WORKER}/containers/0/livenessProbe/failureThreshold", [3], "busy for 45 s"),
        ("RayCluster", f"{WORKER}/terminationGracePeriodSeconds", [60], "drains for 90"),
        ("RayCluster", f"{WORKER}/containers/0/ports/2/containerPort", [44318], "RAYGUARD_AGENT_PORT"),
        ("RayCluster", f"{WORKER}/containers/0/ports/2/name", ["agent"], "PodMonitor scrapes port"),
        ("RayCluster", f"{WORKER}/containers/0/env/0/name", ["RAYGUARD_METRICS_ADRESS"], "nobody reads"),
        (
            "RayCluster",
            f"{WORKER}/containers/0/env/1/name",
            ["RAY_GRACEFUL_SHUTDOWN_TIMEOUT_S"],
            "nobody reads",
        ),
        ("RayCluster", f"{WORKER}/containers/0/env/1/name", ["RAY_AUTH_TOKEN"], "stands in a file"),
        ("RayCluster", "spec/workerGroupSpecs/0/template/metadata/labels", [{}], "leaves out the pods"),
        ("RayCluster", "spec/authOptions/mode", ["disabled"], "token is not taken"),
        ("RayCluster", "spec/authOptions/secretName", ["other"], "token is not taken"),
        ("ConfigMap", "data/RAYGUARD_AGENT_PORT", ["99999"], "RAYGUARD_AGENT_PORT"),
        (
            "ConfigMap",
            "data/RAY_RUNTIME_ENV_PLUGINS",
            ['[{"class":"rayguard.cluster.plugin.runtime_env.Plugin"}]'],
            "no rayguard",
        ),
        ("ConfigMap", "data/RAY_RUNTIME_ENV_PLUGINS", ["rayguard"], "cannot be read"),
        ("ConfigMap", "data/RAY_RUNTIME_ENV_PLUGINS", [], "is missing"),
        (
            "ConfigMap",
            "data/RAY_RUNTIME_ENV_HOOK",
            ["rayguard.cluster.plugin.driver_hook.prepared"],
            "does not import",
        ),
        ("ConfigMap", "metadata/name", ["other"], "no ConfigMap"),
        ("ServiceAccount", "metadata/name", ["other"], "no ServiceAccount"),
        ("ServiceAccount", "metadata/namespace", ["other"], "namespaces"),
        ("Namespace", "metadata/name", ["other"], "namespaces"),
        ("NetworkPolicy", "spec/podSelector/matchLabels", [{"app": "ray"}], "guards no pod"),
        ("NetworkPolicy", "spec/ingress/2/ports/0/port", ["metrix"], "no pod has"),
        ("NetworkPolicy", "spec/ingress/2/ports", [], "every port to another namespace"),
        ("NetworkPolicy", "spec/ingress/0/from", [], "everybody in"),
        (
            "PodDisruptionBudget",
            "spec/selector/matchLabels",
            [{"ray.io/node-type": "Head"}],
            "protects no pod",
        ),
        ("PodMonitor", "spec/podMetricsEndpoints/0/port", ["health-port"], "PodMonitor scrapes port"),
        ("PodMonitor", "spec/podMetricsEndpoints/0/relabelings", [[]], "job=rayguard"),
        ("PodMonitor", "kind", ["ServiceMonitor"], "selects no Service"),
        ("ConfigMap", "kind", ["Secret"], "a Secret lies in a file"),
    ],
)
def test_a_contradiction_is_told(gpu, kind, path, value, says):
    """Valid by its schema, and still not what was meant."""
    document = _one(gpu, kind)
    if kind == "PodMonitor" and path == "kind":
        document["spec"]["endpoints"] = document["spec"]["podMetricsEndpoints"]
    if "nvidia.com~gpu" in path:
        _at(document, path.rpartition("/")[0], {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": value[0]})
    else:
        _at(document, path, *value)
    assert any(says in one for one in cross.contradictions(gpu)), cross.contradictions(gpu)


def test_without_the_schemas_it_says_so(monkeypatch, tmp_path, gpu):
    """Not valid and not refused: not checked."""
    monkeypatch.setenv("RAYGUARD_TEST_SCHEMAS", str(tmp_path))
    with pytest.raises(kinds.SchemaMissingError, match="RAYGUARD_TEST_SCHEMAS"):
        kinds.complaints(_one(gpu, "RayCluster"))
