"""A trainer that says nothing of its state is killed on a real Ray, and trains on: the same losses, to the bit."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

import rayguard

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
WAIT_S = 150  # for a busy machine: a deadline, no measure
STEPS, KILLS = 8, (2, 5)


def trainer_class():
    """A class of the workers' own: nothing of this file is imported there."""

    class Trainer(rayguard.TrainerMixin):
        def __init__(self):
            import torch

            torch.manual_seed(7)
            self.model = torch.nn.Sequential(
                torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
            )
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
            self.number = 0

        def step(self):
            import torch

            loss = self.model(torch.randn(16, 4)).square().mean()
            loss.backward()
            self.number += 1
            self.optimizer.step()
            self.optimizer.zero_grad()
            return self.number, loss.item()

        def pid(self):
            return os.getpid()

    return Trainer


def curve(ray, kills=()):
    actor = ray.remote(num_cpus=0)(trainer_class()).remote()
    losses = []
    for number in range(STEPS):
        if number in kills:
            pid = ray.get(actor.pid.remote(), timeout=WAIT_S)
            os.kill(pid, signal.SIGKILL)
            until_gone(pid)
        losses.append(ray.get(actor.step.remote(), timeout=WAIT_S))
    pid = ray.get(actor.pid.remote(), timeout=WAIT_S)
    ray.kill(actor)
    return losses, pid


def until_gone(pid):
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)
    threading.Event().wait(0.5)  # until Ray knows it: what is called now meets the next life


def test_a_killed_trainer_trains_on_to_the_bit(ray):
    """Twice: weights, moments, the number of the step, and the random numbers of data and dropout."""
    expected, first = curve(ray)
    found, second = curve(ray, KILLS)
    assert first != second
    assert found == expected
    assert [number for number, _ in found] == list(range(1, STEPS + 1))
