"""Rules and dashboards as Kubernetes takes them, made from the very rules that Prometheus reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_OURS = {"app.kubernetes.io/part-of": "rayguard"}


def prometheus_rule(rule_files: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the PrometheusRule of Prometheus' operator: the groups of all ``rule_files``, in their order."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        # What the operator of kube-prometheus-stack selects by: the name of its Helm release.
        "metadata": {"name": "rayguard", "labels": {**_OURS, "release": "prometheus"}},
        "spec": {"groups": [group for rules in rule_files for group in rules["groups"]]},
    }


def dashboards(names: Iterable[str]) -> dict[str, Any]:
    """Return the kustomization that makes a ConfigMap of each dashboard: all are too big for one."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "generatorOptions": {
            "disableNameSuffixHash": True,
            "labels": {**_OURS, "grafana_dashboard": "1"},  # what Grafana's sidecar looks for
        },
        "configMapGenerator": [
            {
                "name": f"rayguard-dashboard-{name.removesuffix('.json').removeprefix('rayguard-')}",
                "files": [f"dashboards/{name}"],
            }
            for name in names
        ],
    }
