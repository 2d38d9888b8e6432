"""A user's own plugin for ms-swift (``--external_plugins``): a reward, and faults on demand.

It stands in a folder of its own, since ms-swift puts that first on the path of its processes.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from swift.callbacks.mapping import callbacks_map
from swift.rewards import orms
from transformers import TrainerCallback

POISONED, DIES = "RAYGUARD_CHECK_POISONED", "RAYGUARD_CHECK_DIES"


class Varied:
    """The more different characters, the better."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, completions, **_):
        return [float(len(set(one))) for one in completions]


class Faults(TrainerCallback):
    """A gradient that is not finite in one step, and a process that is killed once at the begin of one."""

    hook = None

    def __init__(self, *_):
        super().__init__()

    def on_step_begin(self, args, state, control, model=None, **_):
        step = str(state.global_step + 1)
        poisoned, _, value = os.environ.get(POISONED, "").partition(":")
        if poisoned == step:
            print("poisoned: step", step, flush=True)
            self.hook = next(model.parameters()).register_hook(
                lambda gradient: gradient.new_full(gradient.shape, float(value))
            )
        dies, _, once = os.environ.get(DIES, "").partition(":")
        if dies == step and not Path(once).exists():
            Path(once).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_step_end(self, *_, **__):
        if self.hook is not None:
            self.hook.remove()
            self.hook = None


orms["varied"] = Varied
callbacks_map["faults"] = Faults
