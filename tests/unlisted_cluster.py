"""A Ray cluster of several nodes that other programs on this machine do not find by themselves."""

from unittest.mock import patch


def unlisted_cluster(**options):
    """Return a ``ray.cluster_utils.Cluster`` that no ``ray.init()`` without an address joins.

    Its head, when it starts, notes its address where each driver on the machine looks: other tests', too.
    """
    import ray._private.utils
    from ray.cluster_utils import Cluster

    class Unlisted(Cluster):
        def add_node(self, *args, **kwargs):
            with patch.object(ray._private.utils, "write_ray_address"):
                return super().add_node(*args, **kwargs)

    return Unlisted(**options)
