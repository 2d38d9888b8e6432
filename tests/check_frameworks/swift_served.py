"""ms-swift's ``swift rollout`` with a vLLM engine on the CPU, and its client: processes of the server are killed.

One server bare and one under ``rayguard run``. What shows that the weights are current: tokens and log-probabilities
of answers after a push, against those of the same requests without a fault.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

from tests.check_frameworks import swift
from tests.check_frameworks.answers import FaultAnswer, FrameworkAnswer, read
from tests.check_frameworks.environments import ROOT
from tests.check_frameworks.swift_parts.cpu import environment_of
from tests.check_frameworks.swift_parts.server import ENGINE, WORKER, Rollout, free_port, strike
from tests.check_frameworks.swift_parts.training import PROMPTS, built

MOST_DIFFERENCE = 1e-5  # of log-probabilities
STRUCK = (ENGINE, WORKER)
_ME = "tests.check_frameworks.swift_served"
_TOKENS = 300
_CLIENT_S, _ANSWER_S, _BARE_S, _WELL_S = 900.0, 600.0, 60.0, 10.0
_INSIDE_S = 0.2  # from the begin of a generation

environment = swift.environment


def checks() -> FrameworkAnswer:
    """Run them all; needs the packages of ``environment``."""
    from importlib.metadata import version

    ran = "swift rollout with vLLM and VLLMClient on the CPU, tensors by way of the group's store in NCCL's place"
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            model = built(folder)
            bare, guarded = (_served(folder, model, guarded=guarded) for guarded in (False, True))
    except Exception:
        return FrameworkAnswer(version("ms-swift"), ran, problems=[traceback.format_exc(limit=-3)])
    faults = [_fault(what, bare, guarded) for what in STRUCK]
    identical = bare["whole"] == guarded["whole"] != guarded["base"]
    return FrameworkAnswer(version("ms-swift"), ran, faults, identical)


def _served(folder, model, *, guarded):
    """Start a server; return what a client got from it."""
    from rayguard.frameworks.startup import environment as hooks

    server = Rollout(model, guarded, folder / f"server-{guarded}.log", folder / "home")
    try:
        up_s = server.start()
        own = environment_of(RAYGUARD_HOME=server.home)
        done = subprocess.run(
            [sys.executable, "-m", _ME, server.url, str(server.port), str(_ANSWER_S if guarded else _BARE_S)],
            cwd=ROOT, env={**own, **(hooks(own) if guarded else {})}, stdout=subprocess.PIPE, text=True,
            timeout=_CLIENT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(
                f"the client ended with {done.returncode}; its server: {server.said()[-2000:]}"
            )
        found = read(done.stdout)
        return {**found, "restart_s": up_s + found["first_s"]}
    finally:
        server.close()


def _fault(what, bare, guarded):
    lost, found = bare["struck"][what], guarded["struck"][what]
    difference = _difference(bare["whole"], found["answer"])
    return FaultAnswer(
        fault=f"swift rollout, {what} killed in an infer",
        bare=f"infer: {lost['error'] or 'answered'}; {_WELL_S:.0f} s later /health says {lost['well']}",
        survived=not found["error"] and difference <= MOST_DIFFERENCE,
        seconds=found["seconds"],
        ratio_to_restart=round(found["seconds"] / guarded["restart_s"], 2),
        note=f"{found['error'] or 'answered'}, log-probabilities differ by {difference:.1g} at most; against the start of the "
        "server and of a client up to its first answer",
    )


def _difference(one, other):
    """Return by how much log-probabilities differ at most; infinite where the tokens are others."""
    if not other or [tokens for tokens, _ in one] != [tokens for tokens, _ in other]:
        return float("inf")
    pairs = zip((p for _, some in one for p in some), (p for _, some in other for p in some), strict=True)
    return max(abs(a - b) for a, b in pairs)


# -- the client, in a process of its own


def client_of(url: str, port: int, answer_s: float) -> dict[str, object]:
    """Push weights and ask; then have processes of the server killed while it answers, one after the other."""
    from swift.rlhf_trainers.utils import FlattenedTensorBucket
    from swift.rlhf_trainers.vllm_client import VLLMClient

    from rayguard.testing.tiny_qwen import tiny_model

    client = VLLMClient(base_urls=[url], group_ports=free_port())
    client.get_engine_type()
    client.init_communicator(device="cpu")
    base = _infer(client)
    pushed = FlattenedTensorBucket(list(tiny_model(1, spread=0.05).named_parameters()))
    client.update_flattened_params(pushed.get_metadata(), pushed.get_flattened_tensor().detach())
    client.process_weights_after_loading()
    client.reset_prefix_cache()
    whole = _infer(client)
    first_s = time.monotonic() - BEGAN
    struck = {what: _struck(client, port, what, answer_s) for what in STRUCK}
    return {"base": base, "whole": whole, "first_s": first_s, "struck": struck}


def _struck(client, port, what, answer_s):
    """Return how an ``infer`` ends in which a process of the server is killed."""
    hit, began = [], time.monotonic()
    blow = threading.Timer(_INSIDE_S, lambda: hit.append(strike(port, what)))
    blow.start()
    ended = _ended(client, answer_s)
    if not hit:  # it could not be answered anyway, as of a server whose engine is gone already
        blow.join()
        ended = _ended(client, answer_s)
    if not hit:
        raise AssertionError(f"{what} was not struck")
    return {**ended, "seconds": round(time.monotonic() - began, 1), "well": _well(client)}


def _ended(client, answer_s):
    """Return how an ``infer`` ends, which may be never."""
    ended = {"answer": [], "error": f"no answer in {answer_s:.0f} s"}

    def infer():
        try:
            ended.update(answer=_infer(client), error="")
        except Exception as error:
            ended["error"] = repr(error)[:200]

    asking = threading.Thread(target=infer, daemon=True)
    asking.start()
    asking.join(answer_s)
    return dict(ended)


def _well(client):
    """Return what ``/health`` says a while later."""
    threading.Event().wait(_WELL_S)
    try:
        client.check_server(5.0)
    except OSError as error:
        return repr(error)[:100]
    return "ok"


def _infer(client):
    from swift.infer_engine.protocol import RequestConfig, RolloutInferRequest

    asked = [RolloutInferRequest(messages=[{"role": "user", "content": one}]) for one in PROMPTS]
    config = RequestConfig(max_tokens=_TOKENS, temperature=0.0, logprobs=True, return_details=True)
    choices = [one.response.choices[0] for one in client.infer(asked, config, use_tqdm=False)]
    return [[one.token_ids, [token["logprob"] for token in one.logprobs["content"]]] for one in choices]


def main():
    """Run all, or be a client (the server's address and port, and how long an answer is waited for)."""
    if len(sys.argv) > 1:
        url, port, answer_s = sys.argv[1:]
        print(json.dumps(client_of(url, int(port), float(answer_s))), flush=True)
        return 0
    answer = checks()
    print(answer.line())
    return int(not answer.good)


BEGAN = time.monotonic()
if __name__ == "__main__":
    sys.exit(main())
