"""The house in figures: ``python -m tests.architecture_figures``; the last line is JSON.

What each figure counts is said beside its function. ``tests/test_architecture.py`` holds the bars.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
from collections import Counter, defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "rayguard"
RAY_SEAM = PACKAGE / "ray_internals"
VLLM_SEAM = (
    PACKAGE / "engine" / "vllm",
    PACKAGE / "engine" / "prefork",
    PACKAGE / "testing" / "scheduler.py",
)
_PRIVATE_MODULE = re.compile(
    r"^(?:ray\.(?:_\w+|core\.generated|dashboard|\w+\._\w+|experimental\.internal_kv)|vllm\.v1)\b"
)
_ASKING = frozenset({"getattr", "setattr", "hasattr"})
_FOREIGN = re.compile(r"_[a-z]|__ray_")
_RAYS = frozenset({"_private", "_raylet", "_remote"})  # whatever else is called so here
# Of Python itself, for which there is no seam; whatever else begins with one underscore and is defined nowhere here is
# somebody's private name.
_PYTHONS = frozenset(
    {
        "_asdict",
        "_clear_type_cache",
        "_current_frames",
        "_exit",
        "_fields",
        "_getframe",
        "_mmap",
        "_replace",
        "_resource_tracker",
        "_thread_id",
        "_traces",
    }
)


def sources(*roots: Path) -> dict[Path, str]:
    """Return the Python files under ``roots`` (by default the package) and their text."""
    return {
        path: path.read_text("utf-8") for root in roots or (PACKAGE,) for path in sorted(root.rglob("*.py"))
    }


def module_of(path: Path) -> str:
    """Return the dotted name of a file of this repository."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return which modules each imports from: in functions and for types alone, too."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found[name].update(alias.name for alias in node.names if alias.name in trees)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    found[name].add(whole if whole in trees else node.module)
        found[name] &= trees.keys() - {name}
    return found


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other: each of them reaches itself by a way through others."""
    reached = {name: _reached_from(name, arrows) for name in arrows}
    groups = {
        frozenset({name} | {to for to in reached[name] if name in reached.get(to, ())}) for name in arrows
    }
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _reached_from(name: str, arrows: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = set(arrows[name])
    while ahead:
        found |= ahead
        ahead = {target for one in ahead for target in arrows.get(one, ())} - found
    return found


def class_names(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Return the public class names that stand in two files or more, and where."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


def defined_names(trees: dict[str, ast.Module]) -> set[str]:
    """Return the names with an underscore that the package itself defines: methods, attributes, globals."""
    found: set[str] = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
                    found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                found.update(alias.asname or alias.name for alias in node.names)
    return found


def _private_ray(node: ast.AST, own: set[str]) -> str:
    """Return the private name that this node takes from Ray (or another library); '' for none."""
    names: list[str] = []
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in {"ray", "vllm"}:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        names = [node.value.partition("\n")[0]]
    found = next(filter(_PRIVATE_MODULE.match, names), "")
    return found or _private_attribute(node, own)


def _private_attribute(node: ast.AST, own: set[str]) -> str:
    """Return the attribute with an underscore that is asked of an object of somebody else; '' for none."""
    name, of = "", None
    if isinstance(node, ast.Attribute):
        name, of = node.attr, node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ASKING:
        name = str(node.args[1].value) if isinstance(node.args[1], ast.Constant) else ""
    if name in _RAYS or (_FOREIGN.match(name) and name not in own | _PYTHONS):
        return "" if isinstance(of, ast.Name) and of.id in {"self", "cls"} else name
    return ""


def private_names(sources_by_path: dict[Path, str]) -> list[str]:
    """Return the places outside the seams of Ray and vLLM where a private name of another library stands."""
    trees = {path: ast.parse(text) for path, text in sources_by_path.items()}
    own = defined_names({str(path): tree for path, tree in trees.items()})
    seams = (RAY_SEAM, *VLLM_SEAM)
    return [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}: {name}"
        for path, tree in trees.items()
        if not any(seam in (path, *path.parents) for seam in seams)
        for node in ast.walk(tree)
        if (name := _private_ray(node, own))
    ]


def function_lengths(trees: dict[str, ast.Module]) -> list[int]:
    """Return the lines of each function and method, docstrings included."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return sorted(
        node.end_lineno - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and node.end_lineno
    )


def files_by_folder() -> Counter[Path]:
    """Return how many Python files lie in each folder of the repository that holds code."""
    roots = (PACKAGE, *(REPOSITORY / name for name in ("tests", "examples", "deploy")))
    return Counter(path.parent.relative_to(REPOSITORY) for path in sources(*roots))


def any_count(texts: dict[Path, str]) -> int:
    """Return how often ``Any`` stands there, imports and texts included."""
    return sum(len(re.findall(r"\bAny\b", text)) for text in texts.values())


def figures() -> dict[str, object]:
    """Measure the house as it stands."""
    texts = sources()
    trees = {module_of(path): ast.parse(text) for path, text in texts.items()}
    lengths = function_lengths(trees)
    return {
        "files": len(texts),
        "lines": sum(text.count("\n") for text in texts.values()),
        "max_file_lines": max(text.count("\n") for text in texts.values()),
        "max_folder_files": max(files_by_folder().values()),
        "cycles": len(circles(imports(trees))),
        "class_names_twice": len(class_names(trees)),
        "any_count": any_count(texts),
        "ray_private_outside_seam": len(private_names(texts)),
        "function_median": int(statistics.median(lengths)),
        "function_p90": lengths[int(len(lengths) * 0.9)],
    }


def main() -> None:
    """Print what stands behind the figures, then the figures."""
    texts = sources()
    trees = {module_of(path): ast.parse(text) for path, text in texts.items()}
    print(*(f"circle: {', '.join(group)}" for group in circles(imports(trees))), sep="\n")
    print(*(f"class {name}: {', '.join(where)}" for name, where in class_names(trees).items()), sep="\n")
    print(*(f"private: {place}" for place in private_names(texts)), sep="\n")
    long = ((path, text.count("\n")) for path, text in texts.items() if text.count("\n") > 300)
    print(*(f"{lines} lines: {module_of(path)}" for path, lines in long), sep="\n")
    print(
        *(f"{count} files: {folder}" for folder, count in files_by_folder().items() if count > 20), sep="\n"
    )
    print(json.dumps(figures()))


if __name__ == "__main__":
    main()
