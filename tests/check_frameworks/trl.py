"""TRL: a real ``GRPOTrainer`` on the CPU, and its real client of an inference server.

The trainer's own loop, loss, optimizer and checkpoints; a random model of 100 000 parameters. The client is TRL's
class over HTTP to a server of ours that speaks its protocol, and weights go over HTTP too: NCCL needs a GPU. With a
real engine behind it: ``trl_served``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path

from tests.check_frameworks.answers import FaultAnswer, FrameworkAnswer
from tests.check_frameworks.environments import FrameworkEnvironment

STEPS, BAD, PUSHED = 4, 2, 7
_PROMPTS = ["What is 1 + 1?", "Name a colour.", "Say a word.", "How are you?"]
_LOOK_S, _RUN_S = 300.0, 600


def environment() -> FrameworkEnvironment:
    """Return what TRL's checks need."""
    return FrameworkEnvironment("trl", ("trl==1.16.0", "torch==2.13.0", "numpy", "requests"))


def checks() -> FrameworkAnswer:
    """Run them all; needs the packages of ``environment``."""
    import trl

    problems: list[str] = []

    def tried(check):
        try:
            return check()
        except Exception:  # what one could not find out, the others still may
            problems.append(f"{check.__name__}: {traceback.format_exc(limit=-3)}")

    # The bare ones first: guarding a class is for good.
    stale = tried(_bare_server)
    done = [tried(check) for check in (_nan_gradient, _nan_gradient_without_a_line)]
    done += [tried(lambda check=check: check(stale)) for check in (_server_killed, _server_restarted_unseen)]
    identical = bool(tried(_is_identical))
    ran = "GRPOTrainer on the CPU, without an engine; VLLMClient over HTTP, weights over HTTP in NCCL's place"
    faults = [one for one in done if one is not None]
    return FrameworkAnswer(trl.__version__, ran, faults, identical, problems)


def trained(folder, *callbacks, poisoned=False):
    """Run a trainer to its end, and return its model's parameters."""
    import torch
    from datasets import Dataset
    from transformers import set_seed
    from trl import GRPOConfig, GRPOTrainer

    from rayguard.testing.tiny_qwen import tiny_model, tiny_tokenizer

    set_seed(0)
    torch.set_num_threads(1)
    settings = GRPOConfig(
        output_dir=str(folder), max_steps=STEPS, save_steps=1, logging_steps=1, per_device_train_batch_size=4,
        num_generations=2, max_completion_length=8, learning_rate=1e-3, use_cpu=True, bf16=False, report_to=[],
        seed=0, gradient_checkpointing=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=tiny_model(0),
        reward_funcs=lambda completions, **_: [float(len(set(one))) for one in completions],
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": _PROMPTS * 4}),
        processing_class=tiny_tokenizer(_PROMPTS),
        callbacks=[*callbacks, *([_poison()] if poisoned else [])],
    )
    trainer.train()
    return [one.detach().clone() for one in trainer.model.parameters()]


def _poison():
    """Return a callback that makes one gradient NaN in step ``BAD``, in the backward pass itself."""
    from transformers import TrainerCallback

    class Poison(TrainerCallback):
        hook = None

        def on_step_begin(self, args, state, control, model=None, **_):
            if state.global_step + 1 == BAD:
                self.hook = next(model.parameters()).register_hook(lambda gradient: gradient * float("nan"))

        def on_step_end(self, *_, **__):
            if self.hook is not None:
                self.hook.remove()

    return Poison()


def _checkpoints(folder):
    from rayguard.dialects.dialect import CheckpointPlace
    from rayguard.runner.checkpoint_look import newest_good

    place = CheckpointPlace(folder=folder, pattern="checkpoint-*", saves=True, resumes_newest=False)
    return newest_good(place, deadline_s=_LOOK_S)


def _nan_gradient():
    """Bare, the checkpoint behind it is poisoned and the run dies; with the callback it goes on to its end."""
    from rayguard.frameworks.trl import Callback

    with tempfile.TemporaryDirectory() as name:
        bare, guarded = Path(name) / "bare", Path(name) / "guarded"
        try:
            trained(bare, poisoned=True)
            ended = "it went on"
        except RuntimeError as error:
            ended = f"{type(error).__name__}: {error}"
        left = _checkpoints(bare)
        began, callback = time.monotonic(), Callback()
        trained(guarded, callback, poisoned=True)
        took = time.monotonic() - began
        whole = _all_good(guarded)
    poisoned = [one.path.name for one in left.rejected]
    resumed = left.good.name if left.good is not None else "none"
    return FaultAnswer(
        fault=f"one NaN gradient in step {BAD} of {STEPS}",
        bare=f"{ended[:120]}; poisoned: {', '.join(poisoned)}; the newest good one: {resumed}",
        survived=whole and callback.steps.skipped == 1 and resumed == f"checkpoint-{BAD - 1}",
        seconds=round(took, 1),
        note="the whole run, the look at its checkpoints aside; the step is left out",
    )


def _all_good(folder):
    found = _checkpoints(folder)
    return found.good is not None and found.good.name == f"checkpoint-{STEPS}" and not found.passed_over


def _nan_gradient_without_a_line():
    """The same in a program that knows nothing of us, started as ``rayguard run`` starts it."""
    from rayguard.frameworks.startup import environment as hooks

    with tempfile.TemporaryDirectory() as name:
        program = f"from tests.check_frameworks.trl import trained; trained({name!r}, poisoned=True)"
        own = {**os.environ, **hooks(os.environ)}
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", program], env=own, stdout=subprocess.DEVNULL, timeout=_RUN_S, check=False
        )
        took = time.monotonic() - began
        whole = not done.returncode and _all_good(Path(name))
    return FaultAnswer(
        fault="the same, in a program without a line of rayguard",
        bare="as above",
        survived=whole,
        seconds=round(took, 1),
        note="the whole program, its imports too",
    )


def _is_identical():
    """Say whether a run without a fault has the same parameters to the last bit with the callback."""
    import torch

    from rayguard.frameworks.trl import Callback

    with tempfile.TemporaryDirectory() as name:
        bare, guarded = trained(Path(name) / "bare"), trained(Path(name) / "guarded", Callback())
    return all(torch.equal(one, other) for one, other in zip(bare, guarded, strict=True))


# -- the client


def _client(server, *, guarded):
    """Return TRL's own client, with a broadcast over HTTP."""
    from trl.generation import vllm_client

    from rayguard.frameworks.trl.client import guard_module
    from tests.frameworks.clients import send

    class Engine:
        @staticmethod
        def trainer_init(info):
            return types.SimpleNamespace(port=info["master_port"], group=types.SimpleNamespace())

        @staticmethod
        def trainer_send_weights(iterator, trainer_args):
            for one in iterator:
                send(None, [one], trainer_args.group.port, server.url)

    vllm_client.is_vllm_available = lambda *_, **__: True
    vllm_client._HAS_STATEFUL_TRAINER_ENGINE = False
    vllm_client._HAS_RESET_PREFIX_CACHE_SUCCESS = True
    vllm_client.get_ip = lambda: "127.0.0.1"
    vllm_client.NCCLWeightTransferEngine = Engine
    vllm_client.NCCLTrainerSendWeightsArgs = types.SimpleNamespace
    if guarded and not guard_module(vllm_client):
        raise AssertionError("TRL's client is not known")
    client = vllm_client.VLLMClient(base_url=server.url, connection_timeout=30)
    client.init_communicator(device="cuda")  # without a number: no device is asked for
    return client


def _push(client, value):
    import torch

    client.update_named_params([("w", "float32", [1])], iter([("w", torch.tensor([value]))]))
    client.reset_prefix_cache()


def _sampled(client):
    """Return the weight that an answer was made with."""
    return client.generate([[1, 2], [3]], logprobs=None)["completion_ids"][0][0]


def _struck(strike, *, guarded):
    """Return with which weight the server answers after a push and ``strike``, and how long that took."""
    from tests.frameworks.inference_server import InferenceServer

    server = InferenceServer()
    try:
        client = _client(server, guarded=guarded)
        _push(client, float(PUSHED))
        strike(server)
        began = time.monotonic()
        return _sampled(client), round(time.monotonic() - began, 2)
    finally:
        server.close()


def _dies(server):
    server.plan(v1__completions="die")
    server.restart_once_dead()


def _restarts(server):
    server.restart()


def _bare_server():
    """Return what the bare client samples with after each: 0 is the server's original weight."""
    return [_struck(strike, guarded=False)[0] for strike in (_dies, _restarts)]


def _told(weight):
    return "sampled from the original weights, without a word" if weight == 0 else f"sampled with {weight}"


def _server_killed(stale):
    """In the midst of a generation, and started again by somebody."""
    weight, took = _struck(_dies, guarded=True)
    return FaultAnswer(
        fault="the server of server mode killed in a generation, and started again",
        bare=_told(stale[0]) if stale else "not found out",
        survived=weight == PUSHED,
        seconds=took,
        note="the server's own start takes 0.2 s here; bare, one that stays away takes 60 s of retries",
    )


def _server_restarted_unseen(stale):
    """Between a push and a generation: TRL pushes only when its step has changed."""
    weight, took = _struck(_restarts, guarded=True)
    return FaultAnswer(
        fault="the server restarted unseen between a push and a generation",
        bare=_told(stale[1]) if stale else "not found out",
        survived=weight == PUSHED,
        seconds=took,
    )


def main():
    """Print the answer."""
    answer = checks()
    print(answer.line())
    return int(not answer.good)


if __name__ == "__main__":
    sys.exit(main())
