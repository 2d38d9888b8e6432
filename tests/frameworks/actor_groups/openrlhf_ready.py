"""What workers of OpenRLHF begin with where they are preloaded: its launcher, for a machine without DeepSpeed."""

from tests.check_frameworks.openrlhf_absent import make_up

make_up()

import openrlhf.trainer.ray.launcher  # noqa: E402,F401
