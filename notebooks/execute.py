"""Executes the notebooks and writes them back with what they print and draw.

    python notebooks/execute.py                      # all of them, a few minutes
    python notebooks/execute.py 1_quickstart.ipynb   # one

Each runs on the CPU, in an empty folder, by a kernel of this very Python; notebook 3
needs the wheels of `plan-cuda`. A notebook that fails, or that leaves a file behind, is
not written. Of metadata only what a viewer needs is kept, so that a second run changes
nothing but outputs.
"""

import argparse
import os
import tempfile
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

HERE = Path(__file__).parent
SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "XLA_FLAGS": "",
}
METADATA = {
    "kernelspec": {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}


def executed(notebook: Path) -> nbformat.NotebookNode:
    """The notebook as it is after a run.

    Args:
        notebook: the file, which stays as it is.

    Raises:
        CellExecutionError: a cell failed.
        RuntimeError: the run left files behind.
    """
    book = nbformat.read(notebook, as_version=4)
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as own,
    ):
        client = NotebookClient(
            book,
            km=_kernel(Path(own)),
            timeout=300,
            coalesce_streams=True,
            record_timing=False,
            # What C++ writes goes to the terminal: jax's CUDA wheels miss a driver.
            extra_arguments=["--IPKernelApp.capture_fd_output=False"],
            resources={"metadata": {"path": folder}},
        )
        # An empty cache: the seconds that a notebook prints are those of compiling.
        caches = {"IPYTHONDIR": own, "SNNJAX_CACHE_DIR": f"{own}/figures"}
        client.execute(cleanup_kc=True, env=os.environ | SETTINGS | caches)
        left = sorted(p.name for p in Path(folder).iterdir())
    if left:
        raise RuntimeError(f"{notebook.name} leaves {', '.join(left)} behind.")
    return _bare(book)


def _kernel(folder: Path) -> AsyncKernelManager:
    """Of this Python, whatever kernels are registered; its sockets are in `folder`."""
    return AsyncKernelManager(
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
        transport="ipc",
        connection_file=str(folder / "kernel.json"),
    )


def _bare(book: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without what differs from run to run or from editor to editor."""
    book.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(book.cells, 1):
        cell.id, cell.metadata = f"cell-{number}", nbformat.from_dict({})
    return book


def main() -> None:
    parser = argparse.ArgumentParser(description="Executes and writes the notebooks.")
    parser.add_argument("names", nargs="*", help="files in notebooks/; all by default")
    names = parser.parse_args().names
    for path in [HERE / Path(n).name for n in names] or sorted(HERE.glob("*.ipynb")):
        print(path.name, flush=True)
        nbformat.write(executed(path), path)


if __name__ == "__main__":
    main()
