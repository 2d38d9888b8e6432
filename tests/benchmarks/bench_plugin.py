"""What the plugin costs a worker's start: spawn to the end of an actor's first call. Run it as a script.

Workers with ``runtime_env={"rayguard": {}}`` and without start in turns, each a process of its own (a variable
of its own keeps Ray from lending one that waits). The bar is on CPU seconds of the whole process, which a busy
machine hardly touches; wall-clock seconds stand beside it.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

LIMIT_RATIO = 1.02


class Light:
    """The least that an actor can be: what it does itself hides nothing."""

    def __init__(self):
        self.ready = True

    def first(self):
        """Return the CPU seconds of this process so far."""
        return time.process_time()


def start(ray, actor_class, runtime_env, number):
    """Start one worker; return wall-clock and CPU seconds to the end of its first call."""
    env = {**runtime_env, "env_vars": {"BENCH_WORKER": str(number)}}
    began = time.perf_counter()
    actor = actor_class.options(runtime_env=env).remote()
    cpu = ray.get(actor.first.remote())
    wall = time.perf_counter() - began
    ray.kill(actor)
    return wall, cpu


def measure(workers, home):
    """Return the seconds of ``workers`` starts without and with the plugin, in turns."""
    import ray

    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_RUNTIME_ENV_PLUGINS"] = '[{"class": "rayguard.cluster.plugin.RayguardPlugin"}]'
    os.environ["RAYGUARD_HOME"] = home
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ways = ({}, {"rayguard": {"agent": False, "supervisor": False}})
    found = ([], [])
    try:
        actor_class = ray.remote(num_cpus=1)(Light)
        for way in ways:  # the first of each fills caches of the node
            start(ray, actor_class, way, f"first-{len(way)}")
        for turn in range(workers):
            for which in (0, 1) if turn % 2 else (1, 0):
                found[which].append(start(ray, actor_class, ways[which], f"{turn}-{which}"))
    finally:
        ray.shutdown()
    return found


def main():
    """Print the medians and, as the last line, all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=30, help="of each kind")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rayguard-bench-", ignore_cleanup_errors=True) as home:
        bare, watched = measure(options.workers, home)
    result = {"workers": options.workers}
    for which, name in enumerate(("wall", "cpu")):
        without = [times[which] for times in bare]
        differences = [b[which] - a[which] for a, b in zip(bare, watched, strict=True)]
        base = statistics.median(without)
        result[f"{name}_s"] = round(base, 4)
        result[f"{name}_ratio"] = round(1 + statistics.median(differences) / base, 4)
        print(f"{name}: {base:.3f} s without, {statistics.median(differences) * 1e3:+.1f} ms with the plugin")
    result["passed"] = result["cpu_ratio"] <= LIMIT_RATIO
    print(json.dumps(result))


if __name__ == "__main__":
    main()
