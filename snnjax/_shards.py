"""How many devices share the batch, read off the mesh that is set while tracing.

Under automatic partitioning an array says nothing of its sharding while it is traced.
`jax.set_mesh` around the call does, as `snnjax.train` uses it.
"""

import jax

BATCH_AXIS = "batch"  # of the mesh


def batch_shards() -> int:
    """Devices that share the batch; 1 without a mesh, and within `jax.shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[BATCH_AXIS] if BATCH_AXIS in mesh.auto_axes else 1
