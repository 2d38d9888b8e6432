"""Is a document a valid object of its kind? One check for each family of kinds; complaints are sentences.

Core kinds: the schemas that kubernetes-validate brings. KubeRay's: its own OpenAPI schemas, which lie outside the
repository (``SchemaMissingError`` where they are not). Those of Prometheus' operator and of compose no package here
brings: the part of them that we use is written down below, and everything else is refused.
"""

from __future__ import annotations

import gzip
import json
import os
import warnings
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tests.deploy.kustomize import Document

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kubernetes_validate

ROOT = Path(__file__).parents[2]
# The oldest release that is still seen in the field, and the newest that the package knows.
KUBERNETES = ("1.29", kubernetes_validate.latest_version())


class SchemaMissingError(Exception):
    """A schema that is not part of the repository is not on this machine."""


def complaints(document: Document) -> list[str]:
    """Return what makes ``document`` no valid object of its kind, for each API server it may meet.

    Raises ``SchemaMissingError`` where that cannot be told here.
    """
    group = document["apiVersion"].partition("/")[0]
    name = f"{document['kind']} {document.get('metadata', {}).get('name')}"
    if group == "ray.io":
        found = kuberay(document)
    elif group == "monitoring.coreos.com":
        found = operator(document)
    else:
        found = [one for version in KUBERNETES for one in core(document, version)]
    return [f"{name}: {one}" for one in found]


def core(document: Document, version: str) -> list[str]:
    """Check a kind of Kubernetes itself; unknown fields and kinds are refused."""
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    except kubernetes_validate.SchemaNotFoundError as error:
        return [error.message]
    return []


def schemas() -> Path:
    """Return where KubeRay's schemas lie: ``RAYGUARD_TEST_SCHEMAS``, else beside the repository."""
    return Path(os.environ.get("RAYGUARD_TEST_SCHEMAS") or ROOT.parent / "shared" / "schemas")


def kuberay(document: Document) -> list[str]:
    """Check a RayCluster or RayJob; the core kinds within its templates are part of its schema."""
    versions = _versions(schemas() / f"kuberay_{document['kind'].lower()}.json.gz")
    version = document["apiVersion"].partition("/")[2]
    if version not in versions:
        return [f"apiVersion: {version} is not one of {sorted(versions)}"]
    # The API server checks metadata by itself, and so the schema leaves it open.
    found = jsonschema.Draft202012Validator(versions[version]).iter_errors(document)
    return [f"{'.'.join(map(str, error.path))}: {error.message}"[:500] for error in found]


@cache
def _versions(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise SchemaMissingError(f"{path} is not here (RAYGUARD_TEST_SCHEMAS names its directory)")
    return _closed(json.loads(gzip.decompress(path.read_bytes()))["versions"])


def _closed(schema: Any) -> Any:
    """Refuse fields that an object does not list: the API server drops them without a word."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    lists = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if (
        lists
        and "additionalProperties" not in schema
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    ):
        closed["additionalProperties"] = False
    return closed


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Duration = Annotated[
    str, Field(pattern=r"^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$", min_length=2)
]
Label = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
Metric = Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")]


class Metadata(_Strict):
    """Of an object as we write it."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Selector(_Strict):
    """Which objects: by their labels."""

    matchLabels: Annotated[dict[str, str], Field(min_length=1)]  # noqa: N815 - the field's name


class Relabeling(_Strict):
    """One step between discovery and scrape."""

    targetLabel: Label  # noqa: N815 - the field's name
    sourceLabels: list[Label] | None = None  # noqa: N815 - the field's name
    replacement: str | None = None

    @model_validator(mode="after")
    def _says_what(self) -> Relabeling:
        if (self.sourceLabels is None) == (self.replacement is None):
            raise ValueError("either sourceLabels or replacement")
        return self


class Endpoint(_Strict):
    """What is scraped of each pod or service, and how often."""

    port: Annotated[str, Field(min_length=1)]
    path: Annotated[str, Field(pattern=r"^/")]
    interval: Duration
    scrapeTimeout: Duration  # noqa: N815 - the field's name
    relabelings: list[Relabeling] = []


class PodMonitorSpec(_Strict):
    """monitoring.coreos.com/v1 PodMonitor."""

    selector: Selector
    podMetricsEndpoints: Annotated[list[Endpoint], Field(min_length=1)]  # noqa: N815 - the field's name


class ServiceMonitorSpec(_Strict):
    """monitoring.coreos.com/v1 ServiceMonitor."""

    selector: Selector
    endpoints: Annotated[list[Endpoint], Field(min_length=1)]


class Rule(_Strict):
    """An alert, or a query that Prometheus answers all the time."""

    expr: Annotated[str, Field(min_length=1)]
    record: Metric | None = None
    alert: Metric | None = None
    labels: dict[Label, str] = {}
    annotations: dict[Label, str] = {}
    for_: Annotated[Duration | None, Field(alias="for")] = None
    keep_firing_for: Duration | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Rule:
        if (self.record is None) == (self.alert is None):
            raise ValueError("either record or alert")
        if self.record and (self.annotations or self.for_ or self.keep_firing_for):
            raise ValueError("annotations, for and keep_firing_for belong to alerts")
        return self


class Group(_Strict):
    """Rules that are evaluated together."""

    name: Annotated[str, Field(min_length=1)]
    interval: Duration | None = None
    rules: Annotated[list[Rule], Field(min_length=1)]


class PrometheusRuleSpec(_Strict):
    """monitoring.coreos.com/v1 PrometheusRule."""

    groups: Annotated[list[Group], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_distinct(self) -> PrometheusRuleSpec:
        names = [group.name for group in self.groups]
        if len(set(names)) != len(names):
            raise ValueError(f"two groups of one name: {names}")
        return self


_SPECS = {
    "PodMonitor": PodMonitorSpec,
    "ServiceMonitor": ServiceMonitorSpec,
    "PrometheusRule": PrometheusRuleSpec,
}


class Operator(_Strict):
    """What all objects of Prometheus' operator have."""

    apiVersion: Literal["monitoring.coreos.com/v1"]  # noqa: N815 - the field's name
    kind: Literal["PodMonitor", "ServiceMonitor", "PrometheusRule"]
    metadata: Metadata
    spec: dict[str, Any]


def operator(document: Document) -> list[str]:
    """Check a kind of Prometheus' operator against the part of it that we use."""
    try:
        _SPECS[Operator.model_validate(document).kind].model_validate(document["spec"])
    except ValidationError as error:
        return mistakes(error)
    return []


def mistakes(error: ValidationError) -> list[str]:
    """Return one sentence for each mistake that pydantic found."""
    found = error.errors(include_url=False, include_input=False)
    return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found]
