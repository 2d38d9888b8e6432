"""EasyR1's own trainer on a CPU, with workers killed: ``python tests/frameworks/worker_groups/checks_easyr1.py``.

In an environment that has what EasyR1 needs (docs/frameworks/easyr1.md), pytest and rayguard, with a checkout of it
in ``EASYR1_SRC``. Prints a line of JSON for each run. ``bare`` is without rayguard.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
PLUGIN = {  # as docs/frameworks/easyr1.md has it
    "RAY_RUNTIME_ENV_PLUGINS": '[{"class": "rayguard.cluster.plugin.RayguardPlugin"}]',
    "RAY_RUNTIME_ENV_HOOK": "rayguard.cluster.driver.prepare",
    "RAYGUARD_PLUGIN": "{}",
}
PRELOADED = {**PLUGIN, "RAYGUARD_PLUGIN": '{"preload": ["verl.workers.fsdp_workers"]}'}
SWITCHED_ON = {"bare": {}, "guarded": PLUGIN, "preloaded": PRELOADED}
TEXTS = [f"what is {one} plus {one * 3 % 17}, and {one * 7 % 11} less?" for one in range(64)]
REWARD = """
REWARD_NAME, REWARD_TYPE = "letters", "batch"


def score(rewards):
    return [{"overall": sum(map(ord, one["response"])) % 10 / 10} for one in rewards]
"""
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
LIMIT_S = 1_500
# A method, a rank, and the number of its call in that life of the worker; each after the one before.
STRIKES = ("update_actor 1 2", "update_actor 0 3", "generate_sequences 1 1")


@dataclass
class Outcome:
    """What came of one run of the trainer."""

    code: int
    seconds: float
    sums: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    recover_s: list[float] = field(default_factory=list)
    said: str = ""


def prepared(folder):
    """Write a model, its tokenizer, prompts and a reward; return the folder."""
    from rayguard.testing import tiny_qwen

    tiny_qwen.tiny_model(spread=0.2).save_pretrained(folder / "model")
    tokenizer = tiny_qwen.tiny_tokenizer(TEXTS)
    tokenizer.chat_template, tokenizer.pad_token = TEMPLATE, tiny_qwen.END
    tokenizer.save_pretrained(folder / "model")
    lines = [json.dumps({"prompt": text, "answer": "1"}) for text in TEXTS]
    (folder / "data.jsonl").write_text("\n".join(lines))
    (folder / "reward.py").write_text(REWARD)
    return folder


def options(folder, run, *, ranks, prompts, steps):
    """Return the command line of one run."""
    actor, trainer, data = "worker.actor.", "trainer.", "data."
    return [
        f"{data}train_files={folder}/data.jsonl",
        f"{data}val_files={folder}/data.jsonl",
        f"{data}max_prompt_length=32",
        f"{data}max_response_length=6",
        f"{data}rollout_batch_size={prompts}",
        f"{data}val_batch_size=8",
        f"{data}filter_overlong_prompts=false",
        f"{actor}model.model_path={folder}/model",
        f"{actor}global_batch_size={prompts}",
        f"{actor}micro_batch_size_per_device_for_update=1",
        f"{actor}micro_batch_size_per_device_for_experience=4",
        f"{actor}padding_free=false",
        f"{actor}dynamic_batching=false",
        f"{actor}use_torch_compile=false",
        f"{actor}optim.lr=1e-3",
        "worker.rollout.n=4",
        "worker.rollout.val_override_config={n: 1}",
        f"worker.reward.reward_function={folder}/reward.py:score",
        f"{trainer}n_gpus_per_node={ranks}",
        f"{trainer}max_steps={steps}",
        f"{trainer}val_before_train=false",
        f"{trainer}logger=[console]",
        f"{trainer}save_checkpoint_path={run}/checkpoints",
    ]


def trained(folder, *, mode, strikes=(), ranks=2, prompts=4, steps=4, nan=""):  # noqa: PLR0913
    """Run EasyR1's ``main`` once. ``mode``: bare, guarded, preloaded (guarded, workers with their imports done)."""
    run = Path(tempfile.mkdtemp(prefix=f"{mode}-", dir=folder))
    sums, word = run / "sums", run / "strike"
    word.write_text("\n".join(strikes))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(HERE / "easyr1_cpu"), os.environ["EASYR1_SRC"], str(HERE.parents[2])]
        ),
        **SWITCHED_ON[mode],
        "EASYR1_CPU": "1",
        "EASYR1_SUMS": str(sums),
        "EASYR1_STRIKE": str(word),
        "EASYR1_NAN": nan,
        "RAYGUARD_HOME": str(run / "home"),
        "RAY_OVERRIDE_RESOURCES": json.dumps({"GPU": ranks, "CPU": 16 + 5 * ranks}),
        "RAY_ADDRESS": "local",  # never a cluster that somebody else has started here
        "RAY_AUTH_MODE": "disabled",
        "RAY_DEDUP_LOGS": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    command = [sys.executable, "-m", "verl.trainer.main"]
    command += options(folder, run, ranks=ranks, prompts=prompts, steps=steps)
    began = time.monotonic()
    with (run / "out").open("w") as out:
        code = subprocess.run(
            command,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=run,
            timeout=LIMIT_S,
            check=False,
        ).returncode
    found = Outcome(code, round(time.monotonic() - began, 1))
    if sums.exists():
        updates = [json.loads(line) for line in sums.read_text().splitlines()]
        found.sums, found.rows = [one["sum"] for one in updates], [one["rows"] for one in updates]
        found.steps = [one["steps"] for one in updates]
    found.outcomes, found.recover_s = told(run / "home")
    found.said = "" if not code else (run / "out").read_text()[-3_000:]
    return found


def told(home):
    """Return how the incidents of groups ended."""
    from rayguard.recovery.journal import Journal

    groups = [one for one in Journal(home).read() if one.remedy == "restart_group"]
    return [one.outcome.value for one in groups], [
        one.recover_s for one in groups if one.recover_s is not None
    ]


def show(name, found, *, holds):
    """Print what came of a run."""
    print(json.dumps({"run": name, "holds": holds, **vars(found)}), flush=True)
    return holds


def last_of_each(sums, steps):
    """Return the last sums, one for each step: updates that were made again stand twice."""
    return list(dict.fromkeys(sums))[:steps]


def check_workers_killed(folder):
    """Ranks 1 and 0 die within updates, and one while it generates: as if they had not, to the last digit."""
    bare = trained(folder, mode="bare")
    whole = show("no fault, bare", bare, holds=bare.code == 0)
    name = ", ".join(STRIKES)
    struck = trained(folder, mode="bare", strikes=STRIKES)
    whole &= show(f"{name}, bare", struck, holds=struck.code != 0)
    for mode, title in (("guarded", name), ("preloaded", f"{name}, workers preloaded")):
        found = trained(folder, mode=mode, strikes=STRIKES)
        same = last_of_each(found.sums, len(bare.sums)) == bare.sums
        good = found.code == 0 and found.outcomes == ["recovered"] * len(STRIKES)
        whole &= show(title, found, holds=good and same)
    guarded = trained(folder, mode="guarded")
    return whole & show("no fault, guarded", guarded, holds=guarded.code == 0 and guarded.sums == bare.sums)


def check_seven_on_three(folder):
    """7 prompts on 3 workers: refused without rayguard; with it, one optimizer step for each update."""
    bare = trained(folder, mode="bare", ranks=3, prompts=7, steps=2)
    whole = show("7 on 3, bare", bare, holds=bare.code != 0 and "only support equal chunk" in bare.said)
    found = trained(folder, mode="guarded", ranks=3, prompts=7, steps=2)
    return whole & show(
        "7 on 3", found, holds=not found.code and (found.rows, found.steps) == ([10, 10], [1, 1])
    )


def check_nan(folder):
    """Gradients of NaN in the second update: EasyR1 leaves the step out by itself, and so it does with rayguard."""
    bare, guarded = (trained(folder, mode=mode, nan="2", steps=3) for mode in ("bare", "guarded"))
    left_out = not bare.code and bare.steps == [1, 0, 1] and bare.sums[0] == bare.sums[1] != bare.sums[2]
    whole = show("gradients of NaN, bare", bare, holds=left_out)
    same = (guarded.code, guarded.sums, guarded.steps) == (bare.code, bare.sums, bare.steps)
    return whole & show("gradients of NaN", guarded, holds=left_out and same)


def check_places(folder):
    """All places are as they are known, in EasyR1's real modules; 640 answers on 6 workers are 107 each."""
    done = subprocess.run(
        [sys.executable, str(HERE / "easyr1_cpu" / "places.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["EASYR1_SRC"], str(HERE.parents[2])])},
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=LIMIT_S,
        check=False,
    )
    found = json.loads(done.stdout.splitlines()[-1]) if not done.returncode else {}
    holds = bool(found) and len(found["known"]) == 5 and all(found["known"].values())
    holds = holds and (found["each"], found["micro"], found["mini"]) == (107, 4, [107, 107, 107, 106])
    print(
        json.dumps({"run": "places", "holds": holds, **found, "said": done.stderr[-2_000:] * (not holds)}),
        flush=True,
    )
    return holds


CHECKS = {
    "places": check_places,
    "killed": check_workers_killed,
    "seven": check_seven_on_three,
    "nan": check_nan,
}


def main(names=()):
    """Run the checks of these names, or all; say whether all hold."""
    if not os.environ.get("EASYR1_SRC"):
        print(json.dumps({"run": "all", "skipped": "EASYR1_SRC is not set: no checkout of EasyR1"}))
        return True
    folder = prepared(Path(tempfile.mkdtemp(prefix="easyr1-")))
    came = {name: CHECKS[name](folder) for name in (names or CHECKS)}
    return all(came.values())


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:]))
