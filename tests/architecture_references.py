"""What the docstrings and comments of the package point to: does it exist?

A reference is a name in double backticks. ``rayguard.x.y`` must be a module, or a name that a module defines.
In the head of a module, where it says what is elsewhere, a bare name must be one of this file, of a module or
folder beside it, or one that others chose (``FOREIGN``): so no head speaks of a file that was renamed.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from functools import lru_cache
from pathlib import Path

import rayguard
from tests.architecture_figures import PACKAGE, REPOSITORY, module_of

# What Ray, vLLM, Python, users and the command line call their things, where a head speaks of them.
FOREIGN = frozenset(
    {
        "_free",
        "abort_requests",
        "add_request",
        "collective_rpc",
        "down",
        "drain_and_exit_worker",
        "engine_core",
        "engine_status",
        "env_vars",
        "free",
        "generate",
        "get_output",
        "n",
        "outputs_queue",
        "preexec_fn",
        "psm_0b0e5ad5",
        "ray_job",
        "reload_weights",
        "reset_prefix_cache",
        "sleep",
        "status",
        "utility_results",
        "waitpid",
        "worker_extension_cls",
        "write",
    }
)
_OF_RAYGUARD = re.compile(r"``(rayguard(?:\.\w+)+)(?:\([^`]*\))?``")
_BARE = re.compile(r"``((?!__)[a-z_]\w*(?:\.\w+)*)(?:\([^`]*\))?``")
_PATH = re.compile(r"(?<![\w/-])(?:rayguard|tests|examples|deploy)/[\w/.{},*-]*\w/?")


def stale_references(texts: dict[Path, str]) -> list[str]:
    """Return each reference of ``texts`` (by file) that leads nowhere, and where it stands."""
    trees = {path: ast.parse(text) for path, text in texts.items()}
    defined = {module_of(path): _defined(tree) for path, tree in trees.items()}
    strings = {word for tree in trees.values() for word in _strings(tree)}
    stale = [
        (path, reference)
        for path, text in texts.items()
        for reference in _OF_RAYGUARD.findall(text)
        if not _exists(reference, defined) and reference not in strings
    ]
    stale += [(path, name) for path, tree in trees.items() for name in _unknown_in_head(path, tree, defined)]
    return sorted(f"{path.relative_to(REPOSITORY)}: {name}" for path, name in stale)


def stale_paths(document: Path) -> list[str]:
    """Return the paths of this repository that ``document`` names and that are not there."""
    named = {path.rstrip("/") for path in _PATH.findall(document.read_text("utf-8"))}
    return sorted(path for path in named if not any(True for _ in _matching(path)))


def _matching(path: str) -> list[Path]:
    return [*REPOSITORY.glob(path), *REPOSITORY.glob(f"{path}.py")]


def _exists(reference: str, defined: dict[str, set[str]]) -> bool:
    parts = reference.split(".")
    for length in range(len(parts), 0, -1):
        module, rest = ".".join(parts[:length]), parts[length:]
        if module in defined:
            known = set(rayguard.__all__) if module == "rayguard" else defined[module]
            return not rest or rest[0] in known
    return False


def _unknown_in_head(path: Path, tree: ast.Module, defined: dict[str, set[str]]) -> list[str]:
    head = ast.get_docstring(tree, clean=False) or ""
    known = _names(tree) | _beside(path) | FOREIGN | set(dir(builtins)) | set(keyword.kwlist)
    bare = [name.removesuffix(".py") for name in _BARE.findall(head) if not name.startswith("rayguard")]
    return [name for name in bare if not _known(name, path, known, defined)]


def _known(name: str, path: Path, known: set[str], defined: dict[str, set[str]]) -> bool:
    if name in known:
        return True
    first, *rest = name.split(".")
    beside = module_of(path.parent / f"{first}.py")
    if rest and beside in defined and rest[0] not in defined[beside]:
        return False  # a module beside this one has no such name
    return first in known or (bool(rest) and first not in _stems())


@lru_cache(maxsize=1)
def _stems() -> frozenset[str]:
    return frozenset(path.stem for path in PACKAGE.rglob("*") if path.is_dir() or path.suffix == ".py")


def _beside(path: Path) -> set[str]:
    return {path.parent.name} | {name for one in path.parent.iterdir() for name in (one.name, one.stem)}


def _defined(tree: ast.Module) -> set[str]:
    """Return what a module defines at its top, in an ``if`` or ``try`` too."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _names(tree: ast.Module) -> set[str]:
    """Return all names that stand in the code of a module, and the words of its short texts."""
    names = _strings(tree)
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "asname", "module"):
            value = getattr(node, field, None)
            names.update(value.split(".") if isinstance(value, str) else ())
    return names


def _strings(tree: ast.Module) -> set[str]:
    """Return the texts of one line in the code of a module, and their words."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in prose)
    short = [node.value for node in constants if isinstance(node.value, str) and "\n" not in node.value]
    return set(short) | {word for text in short for word in re.findall(r"\w+", text)}
