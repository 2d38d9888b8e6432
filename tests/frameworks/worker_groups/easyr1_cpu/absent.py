"""Stands for a module that is not needed on a CPU."""


class vLLMRollout:  # noqa: N801
    """Never made."""


def fetch_video(*_args, **_options):
    """Never called."""


def process_vision_info(*_args, **_options):
    """Never called."""


class FSDPVLLMShardingManager:
    """Never made."""
