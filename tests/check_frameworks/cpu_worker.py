"""What a vLLM worker loads (``--worker-extension-cls``) so that weights reach it without NCCL: by its import."""

from tests.check_frameworks.cpu_server import without_nccl

without_nccl()


class StoreWorker:
    """Adds nothing."""
