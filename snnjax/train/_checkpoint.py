"""Checkpoints by orbax: whole ones only, however a run ends."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


class Checkpoints:
    """A folder of checkpoints; the last `keep` stay.

    A checkpoint is written under another name and renamed when it is complete, so that
    a process killed at any moment leaves complete ones only; what is left of others is
    removed when the folder is opened again. Saving returns when that is done: the next
    step donates what is being saved.

    Args:
        folder: made if it is not there; all processes of a run share it.
        keep: how many stay.
    """

    def __init__(self, folder: str | Path, *, keep: int = 2) -> None:
        import orbax.checkpoint as ocp  # half a second, for those who save

        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            cleanup_tmp_directories=True,
            enable_async_checkpointing=False,
        )
        self._args = ocp.args
        self._folder = Path(folder).absolute()
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    @property
    def latest(self) -> int | None:
        """The step of the last complete checkpoint."""
        return self._manager.latest_step()

    def save(self, step: int, tree: Any, notes: dict[str, Any]) -> None:
        """Saves every Variable of `tree`, and `notes`, which JSON can hold."""
        state = _saved(nnx.state(tree))
        args = self._args.Composite(
            state=self._args.StandardSave(state),
            notes=self._args.JsonSave({"arrays": _described(state), "notes": notes}),
        )
        self._manager.save(step, args=args, force=True)

    def restore(self, tree: Any) -> dict[str, Any]:
        """Puts the last checkpoint into `tree`; returns the notes.

        Raises:
            ValueError: there is none, or it is of another model or optimizer.
        """
        step, state = self._step(), nnx.state(tree)
        wanted, found = _saved(state), self._json(step)
        # Before orbax looks: where it fails it leaves work behind.
        self._check(step, _described(wanted), found["arrays"])
        target = self._args.StandardRestore(jax.tree.map(_abstract, wanted))
        args = self._args.Composite(state=target)
        restored: Any = self._manager.restore(step, args=args)
        nnx.update(tree, jax.tree.map(_as_before, state, restored.state))
        return found["notes"]

    def notes(self) -> dict[str, Any]:
        """The notes of the last checkpoint, with the plan, before there is a model.

        Raises:
            ValueError: there is no checkpoint.
        """
        return self._json(self._step())["notes"]

    def close(self) -> None:
        self._manager.close()

    def _json(self, step: int) -> dict[str, Any]:
        args = self._args.Composite(notes=self._args.JsonRestore())
        found: Any = self._manager.restore(step, args=args)
        return found.notes

    def _check(self, step: int, wanted: dict[str, str], saved: dict[str, str]) -> None:
        differ = {k for k in wanted | saved if wanted.get(k) != saved.get(k)}
        if differ:
            name = min(differ)
            raise ValueError(
                f"the checkpoint of step {step} in {self._folder} is not of this model "
                f"and optimizer: `{name}` is {saved.get(name, 'missing')} there and "
                f"{wanted.get(name, 'missing')} here. Build both as the run that saved "
                "it did, or choose an empty folder."
            )

    def _step(self) -> int:
        if self.latest is None:
            raise ValueError(
                f"there is no complete checkpoint in {self._folder}; is it the folder "
                "that the run saved to?"
            )
        return self.latest


def _saved(state: Any) -> Any:
    """Random keys as the numbers that they are, which any orbax can write."""
    return jax.tree.map(lambda a: jax.random.key_data(a) if _is_key(a) else a, state)


def _described(state: Any) -> dict[str, str]:
    """Dtype and shape of every array by its path."""
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(p): f"{a.dtype}{list(a.shape)}" for p, a in flat}


def _as_before(now: Any, saved: Any) -> Any:
    if not _is_key(now):
        return saved
    return jax.random.wrap_key_data(saved, impl=jax.random.key_impl(now))


def _is_key(a: Any) -> bool:
    return jnp.issubdtype(a.dtype, jax.dtypes.prng_key)


def _abstract(a: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding)
