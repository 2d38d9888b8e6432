"""A stand-in for your training: plain Ray, nothing of rayguard in it."""
# ruff: noqa: INP001, T201

import os

import ray

ROLLOUTS = int(os.environ.get("ROLLOUTS", "200"))


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Worker:
    """What protects it is the job's runtime environment."""

    def rollout(self, seed: int) -> int:
        """Return something that took a moment to make."""
        return sum(value * seed for value in range(200_000))


def main() -> None:
    """Run the rollouts on as many workers as there are CPUs."""
    ray.init()
    workers = [Worker.remote() for _ in range(max(1, int(ray.cluster_resources().get("CPU", 1))))]
    done = ray.get([workers[seed % len(workers)].rollout.remote(seed) for seed in range(ROLLOUTS)])
    print(f"{len(done)} rollouts by {len(workers)} workers")


if __name__ == "__main__":
    main()
