"""The receiver inside real vLLM engines on the CPU; a torch forward pass is the judge of what they hold."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rayguard.engine.prefork.server import installed
from rayguard.engine.vllm import receiver, weight_push
from rayguard.engine.vllm.receiver import NOTHING, Receiver, install_receiver
from rayguard.engine.weights.version import WeightReceipt, Weights, verify
from rayguard.errors import WeightsError
from rayguard.recovery.tally import TALLY
from rayguard.testing.tiny_qwen import tiny_model

PROMPT = [3, 141, 59, 26, 5, 35, 89, 79, 32, 38]
TOKENS = 12

# How the methods come into the workers: by the plugin, by the extension class, by both at once.
KINDS = {
    "async-tied": {"plugins": "rayguard", "extension": ""},
    "sync-bf16": {"plugins": "rayguard", "extension": f"{receiver.__name__}.Receiver"},
    "sync-untied": {"plugins": "none", "extension": f"{receiver.__name__}.Receiver"},
}


def true_logprobs(model, tokens: list[int]) -> list[float]:
    """Return what torch says of the tokens after the prompt, one by one."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + tokens])).logits[0].float()
    logprobs = torch.log_softmax(logits, dim=-1)
    return [logprobs[len(PROMPT) - 1 + i, token].item() for i, token in enumerate(tokens)]


class Rig:
    """A running engine of either kind behind one set of methods."""

    def __init__(self, kind: str, folder: str) -> None:
        self.kind, self.folder = kind, folder
        self.tied = kind != "sync-untied"
        self.vocab = 500 if kind == "sync-untied" else 512  # 500 is padded to 512 inside vLLM
        self.dtype = "bfloat16" if kind == "sync-bf16" else "float32"
        # CPUs multiply bf16 each in a way of their own: 0.05-0.12 was seen.
        self.tolerance = 0.2 if kind == "sync-bf16" else 1e-4
        self.loop = asyncio.new_event_loop()
        self.first = self.model(1)
        self.first.save_pretrained(folder)
        self.settings = {
            "model": folder,
            "dtype": self.dtype,
            "worker_extension_cls": KINDS[kind]["extension"],
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "max_model_len": 128,
            "max_num_seqs": 4,
            "kv_cache_memory_bytes": 64 << 20,
            "seed": 0,
        }
        self.engine = self._start()

    def _start(self):
        if self.kind == "async-tied":
            from vllm import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM

            return AsyncLLM.from_engine_args(AsyncEngineArgs(**self.settings))
        from vllm import LLM

        return LLM(**self.settings)

    def call(self, method: str, *args):
        """Run a method in the workers."""
        answer = self.engine.collective_rpc(method, 60.0, args)
        return self.loop.run_until_complete(answer) if self.kind == "async-tied" else answer

    def push(self, weights: Weights, digest: str | None = None) -> list[WeightReceipt]:
        """Push, drop the prefix cache as a caller must, and return the receipts."""
        sent = (weights.payload, weights.path, weights.version, digest or weights.digest)
        replies = self.call("rayguard_load_weights", *sent)
        if self.kind == "async-tied":
            self.loop.run_until_complete(self.engine.reset_prefix_cache())
        else:
            self.engine.reset_prefix_cache()
        return [WeightReceipt(**reply) for reply in replies]

    def held(self) -> list[WeightReceipt]:
        """Return what the workers say they hold."""
        return [WeightReceipt(**reply) for reply in self.call("rayguard_weights")]

    def greedy(self) -> tuple[list[int], list[float]]:
        """Return greedy tokens after the prompt and the engine's own logprobs of them."""
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0.0, max_tokens=TOKENS, ignore_eos=True, logprobs=0, detokenize=False
        )
        prompt = {"prompt_token_ids": PROMPT}
        if self.kind == "async-tied":
            output = self.loop.run_until_complete(self._last(prompt, params))
        else:
            output = self.engine.generate([prompt], params, use_tqdm=False)[0]
        tokens = list(output.outputs[0].token_ids)
        return tokens, [
            step[token].logprob for token, step in zip(tokens, output.outputs[0].logprobs, strict=True)
        ]

    async def _last(self, prompt, params):
        request = os.urandom(4).hex()
        return [output async for output in self.engine.generate(prompt, params, request_id=request)][-1]

    def off_by(self, model) -> float:
        """Return how far the engine's logprobs are from those of the torch model."""
        tokens, logprobs = self.greedy()
        return max(abs(a - b) for a, b in zip(logprobs, true_logprobs(model, tokens), strict=True))

    def model(self, seed: int):
        """Return a random one that does not repeat one token for ever."""
        return tiny_model(seed, tied=self.tied, vocabulary=self.vocab, spread=0.2).eval()

    def close(self) -> None:
        """End the engine, with its loop running: otherwise AsyncLLM leaves its sockets open.

        Collecting their context would then wait for ever.
        """
        if self.kind == "async-tied":
            self.loop.run_until_complete(self._shutdown())
        else:
            self.engine.llm_engine.engine_core.shutdown()
        del self.engine
        gc.collect()  # here, and not under the warning filter of some later test
        self.loop.close()

    async def _shutdown(self) -> None:
        self.engine.shutdown()
        await asyncio.sleep(0.2)  # lets the loop close what shutdown() left to it


def test_receiver_answers_for_its_two_methods_alone():
    """Anything else is missing, as on any object."""
    receiver = Receiver()
    assert receiver.rayguard_weights() == NOTHING
    assert not hasattr(receiver, "reload_weights")
    assert not [name for name in dir(Receiver) if not name.startswith("__")]  # nothing to conflict with


def test_receipt_cannot_be_changed_from_outside():
    """A caller who edits its answer does not edit what the worker says next."""
    receiver = Receiver()
    receiver.rayguard_weights()["version"] = "forged"
    assert receiver.rayguard_weights()["version"] == ""


@pytest.mark.parametrize(("payload", "path"), [(None, None), (b"x", "/x")])
def test_bytes_or_path_is_required(payload, path):
    """A push of nothing, or of two things, is refused with a reason."""
    with pytest.raises(WeightsError, match="either bytes or a path"):
        Receiver().rayguard_load_weights(payload, path, "v", "d")


def test_install_is_idempotent_and_reaches_subclasses(monkeypatch):
    """Twice is as once; a worker made before has the methods too."""

    class WorkerBase:
        pass

    worker = type("Worker", (WorkerBase,), {})()
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm.v1", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm.v1.worker", SimpleNamespace())
    monkeypatch.setitem(sys.modules, receiver.WORKER_MODULE, SimpleNamespace(WorkerBase=WorkerBase))
    monkeypatch.setattr(
        sys.modules["vllm.v1.worker"], "worker_base", sys.modules[receiver.WORKER_MODULE], raising=False
    )
    monkeypatch.setattr(sys.modules["vllm.v1"], "worker", sys.modules["vllm.v1.worker"], raising=False)
    monkeypatch.setattr(sys.modules["vllm"], "v1", sys.modules["vllm.v1"], raising=False)
    assert install_receiver()
    assert install_receiver()
    assert worker.rayguard_weights() == NOTHING


def test_install_never_raises(monkeypatch, caplog):
    """A vLLM that is other than we know still starts; the failure is logged and counted."""
    monkeypatch.setitem(sys.modules, receiver.WORKER_MODULE, None)
    before = TALLY.guard_errors["vllm_receiver"]
    assert install_receiver() is False
    assert TALLY.guard_errors["vllm_receiver"] == before + 1
    assert "cannot give vLLM's workers" in caplog.text


def test_a_process_without_workers_does_not_load_vllm():
    """Installing in a process that only looks at settings costs nothing."""
    code = (
        "from rayguard.engine.vllm.receiver import install_receiver; import sys;"
        "assert install_receiver() is False;"
        "print([m for m in ('vllm', 'torch', 'ray', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module", params=KINDS)
def rig(request, tmp_path_factory, prefork):
    pytest.importorskip("vllm", reason="needs the real vLLM engine")
    kept = dict(os.environ)
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_PLUGINS": KINDS[request.param]["plugins"],
        "VLLM_LOGGING_LEVEL": "ERROR",
        "RAYGUARD_RECORDS": str(tmp_path_factory.mktemp("records")),  # what a guarded engine has set
    }
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
    try:
        with installed(prefork, wait_s=120.0):
            rig = Rig(request.param, str(tmp_path_factory.mktemp("model")))
        yield rig
        rig.close()
    finally:
        os.environ.clear()
        os.environ |= kept


def engine_test(test):
    """Mark a test that needs an engine; warnings of vLLM and its libraries are not ours.

    These tests come last: an engine is ended after the last of them, under the same filter.
    """
    return pytest.mark.vllm(pytest.mark.filterwarnings("ignore")(test))


@engine_test
def test_a_new_engine_has_no_version(rig):
    """Weights that came with the model are not a confirmed version."""
    assert rig.held() == [WeightReceipt(**NOTHING)]


@engine_test
@pytest.mark.parametrize("by", ["bytes", "file", "folder"])
def test_a_push_changes_the_model_to_exactly_the_new_weights(rig, tmp_path, by):
    """Log-probabilities equal torch's with the same weights: no layer is stale, tied or not."""
    old, new = rig.first, rig.model(2)
    rig.push(Weights.from_tensors("old", old.state_dict()))
    before, _ = rig.greedy()
    assert rig.off_by(old) < rig.tolerance

    weights = Weights.from_tensors("new", new.state_dict())
    if by == "folder":
        new.save_pretrained(tmp_path, max_shard_size="100KB")
        weights = Weights("new", path=str(tmp_path))
        assert len(list(tmp_path.glob("*.safetensors"))) > 1
    elif by == "file":
        (tmp_path / "new.safetensors").write_bytes(weights.payload)
        weights = Weights("new", path=str(tmp_path / "new.safetensors"))
    receipts = rig.push(weights)

    verify(weights, receipts)
    verify(weights, rig.held())
    assert receipts[0].tensors == len(weights.names())
    [held] = weight_push.receipts(rig.call("rayguard_weights"))
    assert held.layout == weights.names()
    assert rig.off_by(new) < rig.tolerance
    assert rig.greedy()[0] != before

    rig.push(Weights.from_tensors("old again", old.state_dict()))
    assert rig.greedy()[0] == before


@engine_test
def test_the_oracle_can_tell(rig):
    """The same comparison fails for other weights, by far."""
    rig.push(Weights.from_tensors("old", rig.first.state_dict()))
    assert rig.off_by(rig.model(2)) > 10 * rig.tolerance


@engine_test
def test_a_tied_head_follows_the_embedding(rig):
    """Only the embedding changes and nothing is sent for the head: the head must change too."""
    if not rig.tied:
        pytest.skip("this model has a head of its own")
    import torch

    model = rig.model(1)
    rig.push(Weights.from_tensors("before", model.state_dict()))
    with torch.no_grad():
        model.model.embed_tokens.weight.add_(0.1 * torch.randn_like(model.model.embed_tokens.weight))
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    rig.push(Weights.from_tensors("embedding", tensors))
    assert rig.off_by(model) < rig.tolerance


@engine_test
def test_wrong_digest_is_refused_and_the_old_weights_stay(rig):
    """Other bytes than were sent never touch the model, so its version stays true."""
    old = Weights.from_tensors("old", rig.first.state_dict())
    rig.push(old)
    with pytest.raises(Exception, match=r"wrong digest .* where 000000000000 was sent"):
        rig.push(Weights.from_tensors("new", rig.model(2).state_dict()), digest="0" * 64)
    verify(old, rig.held())
    assert rig.off_by(rig.first) < rig.tolerance


BROKEN = {
    "wrong shape": (lambda t: t | {"model.norm.weight": t["model.norm.weight"][:8].clone()}, "Size"),
    "unknown name": (lambda t: t | {"model.nothing.weight": t["model.norm.weight"].clone()}, "nothing"),
    "one missing": (
        lambda t: {k: v for k, v in t.items() if k != "model.norm.weight"},
        "incomplete.*model.norm",
    ),
    "v missing": (
        lambda t: {k: v for k, v in t.items() if ".1.self_attn.v_proj" not in k},
        "incomplete.*1.self_attn.qkv_proj",
    ),
    "bias missing": (
        lambda t: {k: v for k, v in t.items() if "0.self_attn.q_proj.bias" not in k},
        "incomplete.*0.self_attn.qkv_proj",
    ),
    "embedding missing": (
        lambda t: {k: v for k, v in t.items() if k not in {"model.embed_tokens.weight", "lm_head.weight"}},
        "incomplete.*embed_tokens",
    ),
}


@engine_test
@pytest.mark.parametrize("how", BROKEN)
def test_a_failed_load_leaves_no_version_and_can_be_repaired(rig, how):
    """The cause is named, the worker claims nothing, and a whole push afterwards makes it right."""
    rig.push(Weights.from_tensors("old", rig.first.state_dict()))
    spoil, cause = BROKEN[how]
    new = rig.model(3)
    with pytest.raises(Exception, match=f"(?s)weights 'bad' were not loaded by worker 0: .*({cause})"):
        rig.push(Weights.from_tensors("bad", spoil(new.state_dict())))
    assert [receipt.version for receipt in rig.held()] == [""]
    assert len(rig.greedy()[0]) == TOKENS  # it still runs

    good = Weights.from_tensors("good", new.state_dict())
    verify(good, rig.push(good))
    assert rig.off_by(new) < rig.tolerance


@engine_test
def test_a_head_that_differs_from_a_tied_embedding_is_refused(rig):
    """Whichever came last would win, silently."""
    if not rig.tied:
        pytest.skip("this model has a head of its own")
    tensors = rig.first.state_dict()
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    with pytest.raises(Exception, match="tie_word_embeddings=False"):
        rig.push(Weights.from_tensors("untied", tensors))


@engine_test
def test_an_untied_head_that_is_not_sent_is_refused(rig):
    """A trainer that ties what the engine does not would leave the head stale."""
    if rig.tied:
        pytest.skip("this model has no head of its own")
    tensors = {name: tensor for name, tensor in rig.first.state_dict().items() if name != "lm_head.weight"}
    with pytest.raises(Exception, match=r"incomplete.*lm_head"):
        rig.push(Weights.from_tensors("tied", tensors))


@engine_test
def test_a_file_changed_after_the_push_began_is_refused(rig, tmp_path):
    """The digest was taken of other bytes than the worker finds."""
    file = tmp_path / "w.safetensors"
    file.write_bytes(Weights.from_tensors("a", rig.first.state_dict()).payload)
    weights = Weights("a", path=str(file))
    assert weights.digest
    file.write_bytes(Weights.from_tensors("b", rig.model(2).state_dict()).payload)
    with pytest.raises(Exception, match="its files were changed after the push began"):
        rig.push(weights)
