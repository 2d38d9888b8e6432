"""What an engine says that it was built with, before anything is pushed to it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rayguard.engine.vllm.built_with import layout
from rayguard.engine.weights.history import PushHistory
from rayguard.errors import WeightsError
from tests.engine.weights.test_unfit_push import weights


def loaded(tmp_path, load_format, extra):
    return SimpleNamespace(
        model_config=SimpleNamespace(model=str(tmp_path), quantization=None),
        load_config=SimpleNamespace(load_format=load_format, model_loader_extra_config=extra),
    )


@pytest.mark.parametrize("extra", [None, {}, {"mode": "zero_copy", "fallback": False}])
def test_weights_that_engines_share_are_never_pushed_over(tmp_path, extra):
    """A push to one would change them under the others, in the midst of their requests."""
    config = loaded(tmp_path, "ipc_cache", extra)
    engine = SimpleNamespace(layout=lambda: layout(config))
    with pytest.raises(WeightsError, match=r"'mode': 'copy'"):
        PushHistory().judge(weights("1"), engine)


@pytest.mark.parametrize(
    ("load_format", "extra"), [("ipc_cache", {"mode": "copy"}), ("auto", {}), ("auto", None)]
)
def test_weights_of_its_own_may_be_pushed_over(tmp_path, load_format, extra):
    """Nothing is known of their layout here, so anything fits."""
    assert layout(loaded(tmp_path, load_format, extra)) == {}


def test_a_config_of_another_kind_is_no_reason_to_refuse():
    """As of a vLLM that we do not know."""
    assert layout(SimpleNamespace(model_config=SimpleNamespace(model="/nowhere", quantization=None))) == {}
