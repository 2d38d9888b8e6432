"""The generators lie beside what they generate: no job needs them, and the wheel has none of them."""

from pathlib import Path

import deploy.generate
from tests.architecture_figures import sources

ROOT = Path(deploy.generate.__file__).parent


def test_the_package_does_without_them():
    """They are no part of the wheel."""
    assert not [str(path) for path, text in sources().items() if "deploy.generate import" in text]
    assert 'packages = ["rayguard"]' in (ROOT.parents[1] / "pyproject.toml").read_text()


def test_they_are_as_short_as_the_package_is():
    """Files of one subject, in folders that a person can take in."""
    files = sources(ROOT)
    assert {path.name: text.count("\n") for path, text in files.items() if text.count("\n") > 300} == {}
    assert max(sum(other.parent == path.parent for other in files) for path in files) <= 20
