"""The small resolver says what kustomize would, and refuses what it does not know."""

import shutil
import subprocess

import pytest
import yaml

from tests.deploy.checks import KUBERNETES, OVERLAYS
from tests.deploy.kustomize import FILE, KustomizeError, build, sources

DIRECTORIES = sorted(path.parent for path in KUBERNETES.rglob(FILE))


def _made(directory, **said):
    (directory / FILE).write_text(yaml.safe_dump({"kind": "Kustomization", **said}))
    return directory


@pytest.fixture
def base(tmp_path):
    (tmp_path / "pod.yaml").write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: one}, spec: {containers: [{name: a, image: 'rayguard:1'}]}}"
    )
    return tmp_path


@pytest.mark.skipif(
    not shutil.which("kubectl"), reason="kubectl, which has kustomize in it, is not installed"
)
@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: str(path.relative_to(KUBERNETES)))
def test_the_resolver_agrees_with_kustomize(directory):
    """Whatever the overlays use, both make the same of it."""
    real = subprocess.run(
        ["kubectl", "kustomize", str(directory)], capture_output=True, text=True, check=True, timeout=60
    )
    expected = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(real.stdout)}
    assert {(one["kind"], one["metadata"]["name"]): one for one in build(directory)} == expected


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: str(path.relative_to(KUBERNETES)))
def test_no_file_lies_there_unused(directory):
    """A manifest that no kustomization names is applied by nobody."""
    present = {path for path in directory.iterdir() if path.is_file()} - {directory / FILE}
    assert {path.resolve() for path in sources(directory)} >= {path.resolve() for path in present}


def test_there_are_overlays_for_each_use():
    """Small, with GPUs, on nodes that may go, and for one job."""
    assert {"dev", "gpu", "spot", "job"} <= set(OVERLAYS)


def test_patches_images_and_namespace_are_applied(base):
    """In that order, to the documents they select."""
    patch = [
        {"op": "add", "path": "/spec/containers/-", "value": {"name": "b", "image": "other:1"}},
        {"op": "remove", "path": "/spec/containers/0/name"},
        {"op": "add", "path": "/metadata/annotations", "value": {"a~1b": "1"}},
    ]
    _made(
        base,
        namespace="there",
        resources=["pod.yaml"],
        patches=[{"target": {"kind": "Pod", "name": "one"}, "patch": yaml.safe_dump(patch)}],
        images=[{"name": "rayguard", "newName": "mine/rayguard", "newTag": "2"}],
    )
    (pod,) = build(base)
    assert pod["metadata"]["namespace"] == "there"
    assert pod["spec"]["containers"] == [{"image": "mine/rayguard:2"}, {"name": "b", "image": "other:1"}]


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({"resources": ["gone.yaml"]}, "gone.yaml"),
        ({"resources": ["pod.yaml"], "namePrefix": "x-"}, "namePrefix"),
        ({"resources": ["pod.yaml", "pod.yaml"]}, "twice"),
        ({"resources": ["../pod.yaml"]}, "above its root"),
        ({"resources": ["pod.yaml"], "patches": [{"target": {"kind": "Service"}, "patch": "[]"}]}, "Service"),
        (
            {
                "resources": ["pod.yaml"],
                "patches": [
                    {"target": {"kind": "Pod"}, "patch": "[{op: replace, path: /spec/node, value: 1}]"}
                ],
            },
            "node",
        ),
        ({"resources": ["pod.yaml"], "configMapGenerator": [{"name": "m", "files": ["pod.yaml"]}]}, "hash"),
    ],
)
def test_a_mistake_is_refused(base, said, names):
    """As kustomize would; what the resolver does not know, it does not skip."""
    (base / "sub").mkdir()
    inside = base / "sub" if "../" in str(said) else base
    with pytest.raises(KustomizeError, match=names):
        build(_made(inside, **said))
