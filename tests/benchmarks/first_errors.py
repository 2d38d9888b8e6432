"""How long a first mistake takes to be told, from ``Rollout.remote()`` to the error in the caller's hands.

Each mistake is made once on one real Ray, in a class as the README has it. Not measured: mistakes that only vLLM
can find. Last line JSON: ``first_error_s`` (the longest), ``import_ray_s``, ``mistakes`` (seconds of each).
"""

from __future__ import annotations

import json
import os
import sys
import time

SENTENCES = {"no recipe": "build_engine", "misspelt": "max_num_seqs", "no model": "/nowhere/model"}


def main() -> int:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    began = time.monotonic()
    import ray

    import_s = time.monotonic() - began
    ray.init(log_to_driver=False, logging_level="ERROR")
    seconds, untold = {}, []
    for name, make in _mistakes().items():
        began = time.monotonic()
        said = _error_of(make)
        seconds[name] = round(time.monotonic() - began, 2)
        print(
            f"{name}: {seconds[name]} s: {said.strip().splitlines()[-1][:200] if said else 'nothing'}",
            flush=True,
        )
        if SENTENCES[name] not in said:
            untold.append(name)
    ray.shutdown()
    figures = {
        "first_error_s": max(seconds.values()),
        "import_ray_s": round(import_s, 2),
        "mistakes": seconds,
    }
    print(json.dumps(figures))
    return int(bool(untold))


def _mistakes():
    """Return what a beginner writes, by name: each a function that makes the actor."""
    import ray

    import rayguard

    class NoRecipe(rayguard.RolloutMixin):
        def __init__(self):
            self.start_engine()

    class Misspelt(NoRecipe):
        def build_engine(self, settings):
            from vllm import LLM

            return LLM(**settings.as_kwargs(model="Qwen/Qwen2.5-0.5B", max_num_seq=64))

    class NoModel(NoRecipe):
        def build_engine(self, settings):
            from vllm import LLM

            return LLM(**settings.as_kwargs(model="/nowhere/model"))

    made = {"no recipe": NoRecipe, "misspelt": Misspelt, "no model": NoModel}
    return {name: ray.remote(cls).remote for name, cls in made.items()}


def _error_of(make):
    """Return what making the actor, or its first call, raises."""
    import ray

    try:
        ray.get(make().engine_status.remote(), timeout=300)
    except Exception as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.exit(main())
