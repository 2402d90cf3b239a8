"""What a network with a fixed size of image says to others."""

from .._types import Array, check_time_major


def check_frames(x: Array, network: str, image: tuple[int, int, int]) -> None:
    """Raises unless `x` is `[time, batch, *image]`; two channels are event frames.

    Args:
        x: what came.
        network: its name.
        image: height, width and channels that it takes.
    """
    check_time_major(x, "x", "time batch height width channel")
    if x.shape[2:] == image:
        return
    events = image[2] == 2
    what, last = ("event frames", "polarities") if events else ("images", "colors")
    raise ValueError(
        f"`x` has shape {tuple(x.shape)}; {network} takes {what} [time, batch, "
        f"{', '.join(map(str, image))}]: resize them and put the {last} last."
    )
