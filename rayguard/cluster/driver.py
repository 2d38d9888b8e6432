"""The name under which ``RAY_RUNTIME_ENV_HOOK`` stands in users' environments."""

from rayguard.cluster.plugin.driver_hook import prepare

__all__ = ["prepare"]
