"""The worker's part, with vLLM's own functions and no engine: what counts as bad, and where it is left alone."""

from __future__ import annotations

import sys
import types

import pytest

from rayguard.engine.spoiled_requests import LOOK_ENV
from rayguard.engine.vllm.numbers import worker

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

NAN, INF = float("nan"), float("inf")


class Unread(torch.utils._python_dispatch.TorchDispatchMode):
    """Fails where a number is read, or rows are picked by what they hold: a GPU's stream would stand still."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not any(
            word in str(func) for word in ("_local_scalar_dense", "nonzero", "_to_copy.default,cpu")
        )
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_is_bad_by_nan_or_plus_infinity_alone(dtype):
    """One word of 300 is enough. A row of -inf alone, or nearly so, is what masks make."""
    logits = torch.randn(7, 300).to(dtype)
    logits[1, 250] = NAN
    logits[2, :] = NAN
    logits[3, 0] = INF
    logits[4, :] = -INF
    logits[5, 1:] = -INF
    logits[6, :3] = torch.tensor([-INF, NAN, INF])
    before = logits.clone()
    with Unread():
        found = worker.bad_rows(logits)
    assert found.tolist() == [0, 1, 1, 1, 0, 0, 1]
    assert found.dtype == torch.int32, "vLLM sends it on as an int, and can decode no bool there"
    assert torch.equal(logits, before) or logits.isnan().any()
    assert worker.bad_rows(logits.to("meta")).shape == (7,)


@pytest.fixture
def first(monkeypatch):
    """The functions of vLLM's first model runner, in a module and a class of ours."""
    from vllm.v1.worker import gpu_model_runner as real

    envs = types.SimpleNamespace(VLLM_COMPUTE_NANS_IN_LOGITS=False, VLLM_RAISE_ON_LOGIT_NANS=False)
    module = types.ModuleType("first_runner")
    module.envs, module.count_nans_per_row = envs, real.count_nans_per_row

    class Runner:
        __module__ = "first_runner"
        _bookkeeping_sync = real.GPUModelRunner._bookkeeping_sync
        _get_nans_in_logits = real.GPUModelRunner._get_nans_in_logits

        def _sample(self, logits, spec_decode_metadata):
            if logits is not None:
                logits.masked_fill_(logits.isnan(), 0.0)  # sampling works in place
            return "sampled", logits

    monkeypatch.setitem(sys.modules, "first_runner", module)
    return module, Runner


def of(runner, speculative=None):
    return types.SimpleNamespace(
        model_runner=runner, vllm_config=types.SimpleNamespace(speculative_config=speculative)
    )


def test_the_first_runner_counts_what_was_there_before_sampling(first):
    module, kind = first
    assert worker.look(of(kind())) == ""
    assert worker.look(of(kind())) == "", "once more, for another worker"
    assert module.envs.VLLM_COMPUTE_NANS_IN_LOGITS is True
    logits = torch.randn(3, 50)
    logits[1, 7] = NAN
    said, same = kind()._sample(logits, None)
    assert said == "sampled"
    assert same is logits
    assert module.count_nans_per_row(logits).tolist() == [0, 1, 0]
    assert kind()._sample(None, None) == ("sampled", None)
    assert module.count_nans_per_row(torch.full((2, 5), NAN)).tolist() == [0, 0], (
        "not what was not sampled from"
    )


def test_what_goes_wrong_in_it_disturbs_no_step(first, monkeypatch):
    module, kind = first
    assert worker.look(of(kind())) == ""
    monkeypatch.setattr(worker, "bad_rows", lambda _: 1 / 0)
    logits = torch.full((2, 5), NAN)
    assert kind()._sample(logits, None)[0] == "sampled"
    assert module.count_nans_per_row(logits).tolist() == [0, 0]


def test_where_vllm_counts_by_itself_it_goes_on_so(first):
    module, kind = first
    module.envs.VLLM_COMPUTE_NANS_IN_LOGITS = True
    count, sample = module.count_nans_per_row, kind._sample
    assert worker.look(of(kind())) == ""
    assert (module.count_nans_per_row, kind._sample) == (count, sample)


def test_it_is_off_under_speculation_and_in_a_vllm_that_looks_otherwise(first):
    module, kind = first
    assert "speculative" in worker.look(of(kind(), speculative="ngram"))
    assert "none" in worker.look(of(types.SimpleNamespace(sampler=object())))
    assert worker.look(of(types.SimpleNamespace())) == "", "a pooling model samples nothing"
    kind._get_nans_in_logits = lambda self, logits: {}
    assert "otherwise" in worker.look(of(kind()))
    assert module.envs.VLLM_COMPUTE_NANS_IN_LOGITS is False


def test_the_second_runners_sampler_counts_with_ours(monkeypatch):
    """The real one, as far as it goes without a GPU: found, switched on, and its count replaced."""
    from vllm.v1.worker.gpu.sample import sampler as real

    monkeypatch.setattr(real, "get_num_nans", real.get_num_nans)  # put back at the end
    sampler = object.__new__(real.Sampler)
    sampler.compute_nans = False
    runner = types.SimpleNamespace(sampler=sampler)
    assert "speculative" in worker.look(of(runner, speculative="eagle"))
    assert sampler.compute_nans is False
    assert worker.look(of(runner)) == ""
    assert sampler.compute_nans is True
    assert real.get_num_nans(torch.tensor([[1.0, NAN], [0.0, 1.0]])).tolist() == [1, 0]

    class Other(real.Sampler):
        """Of another kind, as models with a sampler of their own have."""

        def __call__(self, logits, input_batch):
            return None

    other = object.__new__(Other)
    other.compute_nans = False
    assert "otherwise" in worker.look(of(types.SimpleNamespace(sampler=other)))
    assert other.compute_nans is False


def test_it_is_installed_only_where_the_owner_wants_it(monkeypatch):
    from vllm.v1.worker import worker_base

    monkeypatch.setattr(
        worker_base.WorkerWrapperBase, "initialize_from_config", lambda self, config: f"made {config}"
    )
    bare = worker_base.WorkerWrapperBase.initialize_from_config
    monkeypatch.setenv(LOOK_ENV, "")
    worker.install()
    assert worker_base.WorkerWrapperBase.initialize_from_config is bare
    monkeypatch.setenv(LOOK_ENV, "1")
    worker.install()
    wrapper = worker_base.WorkerWrapperBase()
    wrapper.worker = types.SimpleNamespace()  # of which nothing is known: it starts as it would
    assert wrapper.initialize_from_config(4) == "made 4"
