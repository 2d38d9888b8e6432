"""What ``kubectl kustomize`` makes of a directory, for machines without it: the few fields that deploy/ uses.

Anything else in a kustomization is refused. A test holds it against the real one where that is installed.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Document = dict[str, Any]
FILE = "kustomization.yaml"
_LOCAL = "config.kubernetes.io/local-config"
_KNOWN = {
    "apiVersion",
    "kind",
    "namespace",
    "resources",
    "generatorOptions",
    "configMapGenerator",
    "patches",
    "images",
    "replacements",
}


class KustomizeError(Exception):
    """A kustomization that cannot be built."""


def build(directory: Path) -> list[Document]:
    """Return the documents that ``directory`` stands for, in the order they were named.

    Raises ``KustomizeError`` naming the directory and what is wrong in it.
    """
    try:
        return _build(directory.resolve())
    except (OSError, KeyError, IndexError, ValueError, yaml.YAMLError) as error:
        raise KustomizeError(f"{directory}: {type(error).__name__}: {error}") from error


def sources(directory: Path) -> set[Path]:
    """Return the files under ``directory`` that its kustomization names; patches stand in it."""
    said = _load(directory / FILE)
    files = [name for name in said.get("resources", ()) if not (directory / name).is_dir()]
    files += [name for made in said.get("configMapGenerator", ()) for name in made["files"]]
    return {directory / name for name in files}


def _build(directory: Path) -> list[Document]:
    said = _load(directory / FILE)
    if surplus := set(said) - _KNOWN:
        raise KustomizeError(f"{directory}: {sorted(surplus)} is not supported here")
    documents = [document for name in said.get("resources", ()) for document in _resource(directory, name)]
    documents += [_config_map(directory, made, said) for made in said.get("configMapGenerator", ())]
    _require_distinct(directory, documents)
    for patch in said.get("patches", ()):
        _patch(documents, patch)
    for document in documents if "namespace" in said else ():
        _move(document, said["namespace"])
    for image in said.get("images", ()):
        _retag(documents, image)
    for replacement in said.get("replacements", ()):
        _replace(documents, replacement)
    return [one for one in documents if one["metadata"].get("annotations", {}).get(_LOCAL) != "true"]


def _load(path: Path) -> Document:
    return yaml.safe_load(path.read_text("utf-8"))


def _resource(directory: Path, name: str) -> list[Document]:
    if (directory / name).is_dir():
        return _build((directory / name).resolve())
    path = _beneath(directory, name)
    return [one for one in yaml.safe_load_all(path.read_text("utf-8")) if one]


def _beneath(directory: Path, name: str) -> Path:
    path = (directory / name).resolve()
    if not path.is_relative_to(directory):
        raise KustomizeError(f"{directory}: kustomize reads no file above its root: {name}")
    return path


def _config_map(directory: Path, made: Document, said: Document) -> Document:
    options = {**said.get("generatorOptions", {}), **made.get("options", {})}
    if not options.get("disableNameSuffixHash"):
        raise KustomizeError(f"{directory}: {made['name']} would get a hash behind its name")
    paths = [_beneath(directory, name) for name in made["files"]]
    labels = {"labels": dict(options["labels"])} if "labels" in options else {}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": made["name"], **labels},
        "data": {path.name: path.read_text("utf-8") for path in paths},
    }


def _require_distinct(directory: Path, documents: list[Document]) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in documents]
    if twice := {name for name in names if names.count(name) > 1}:
        raise KustomizeError(f"{directory}: twice: {sorted(twice)}")


def _selected(documents: list[Document], select: Document) -> list[Document]:
    found = [
        one
        for one in documents
        if all({"kind": one["kind"], **one["metadata"]}[key] == value for key, value in select.items())
    ]
    if not found:
        raise KustomizeError(f"nothing is selected by {select}")
    return found


def _patch(documents: list[Document], patch: Document) -> None:
    for document in _selected(documents, patch["target"]):
        for operation in yaml.safe_load(patch["patch"]):
            _operate(document, **operation)


def _operate(document: Document, op: str, path: str, value: Any = None) -> None:
    *way, last = [key.replace("~1", "/").replace("~0", "~") for key in path.split("/")[1:]]
    here: Any = document
    for key in way:
        here = here[int(key) if isinstance(here, list) else key]
    key = int(last) if isinstance(here, list) and last != "-" else last
    if op in ("replace", "remove"):
        here[key]  # must be there
    if op == "remove":
        del here[key]
    elif op == "add" and isinstance(here, list):
        here.insert(len(here) if key == "-" else key, copy.deepcopy(value))
    elif op in ("add", "replace"):
        here[key] = copy.deepcopy(value)
    else:
        raise KustomizeError(f"operation {op!r} is not supported here")


def _move(document: Document, namespace: str) -> None:
    document["metadata"]["name" if document["kind"] == "Namespace" else "namespace"] = namespace


def _retag(documents: list[Document], image: Document) -> None:
    for container in containers(documents):
        name, _, tag = container["image"].partition(":")
        if name == image["name"]:
            container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"


def containers(tree: Any) -> Iterator[Document]:
    """Yield every container below ``tree``, init containers included."""
    if isinstance(tree, list):
        for branch in tree:
            yield from containers(branch)
    elif isinstance(tree, dict):
        for key, branch in tree.items():
            if key in ("containers", "initContainers") and isinstance(branch, list):
                yield from branch
            else:
                yield from containers(branch)


def _replace(documents: list[Document], replacement: Document) -> None:
    source = replacement["source"]
    (found,) = _selected(documents, {"kind": source["kind"]})
    for target in replacement["targets"]:
        for document in _selected(documents, target["select"]):
            for path in target["fieldPaths"]:
                *way, last = path.split(".")
                here = document
                for key in way:
                    here = here[key]
                if last not in here and not target.get("options", {}).get("create"):
                    raise KustomizeError(f"{path} is not there to be replaced")
                here[last] = copy.deepcopy(found[source["fieldPath"]])
