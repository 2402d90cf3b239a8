"""The parent's half of `peers.py`: environments, and workers that cannot hang it."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
WORKERS = Path(__file__).parent / "peers"
INSTALL, GOODBYE = 1800.0, 10.0  # seconds, at most

Row = dict[str, Any]


def python_of(library: str, requirements: tuple[str, ...], envs: Path) -> Path:
    """The interpreter of a library's environment, which is made where it is missing.

    A stamp beside the environment says what is in it; without it, or with another one,
    pip has not come to its end.

    Raises:
        RuntimeError: it cannot be made.
    """
    major, minor = sys.version_info[:2]
    folder = envs.absolute() / f"{library}-{major}.{minor}"
    stamp = folder.with_name(f"{folder.name}.installed")
    wanted = "\n".join(requirements)
    if not (stamp.exists() and stamp.read_text() == wanted):
        install(folder, requirements)
        stamp.write_text(wanted)
    return folder / "bin" / "python"


def install(folder: Path, requirements: tuple[str, ...]) -> None:
    print(f"installs {', '.join(requirements)} in {folder}", flush=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements]
    for command in ([sys.executable, "-m", "venv", folder], pip):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL
            )
        except subprocess.TimeoutExpired as late:
            raise RuntimeError(f"not installed in {INSTALL:.0f} s") from late
        if done.returncode:
            raise RuntimeError(f"not installed: {done.stderr.strip()[-1000:]}")


def versions(python: Path, packages: Iterable[str]) -> Row:
    """What is installed there, by name."""
    code = (
        "import importlib.metadata as m, json, sys; "
        "print(json.dumps({p: m.version(p) for p in sys.argv[1:]}))"
    )
    command = [python, "-c", code, *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout) if not done.returncode else {"error": done.stderr}


class Worker:
    """A process whose answers, lines of JSON, come within a time limit or not at all.

    Args:
        command: that starts it.
        environment: of its own.
        log: a file for what it says on stderr.
    """

    def __init__(self, command: list[str], environment: dict[str, str], log: Path):
        self.log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        self.lines = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def answer(self, limit: float) -> Row:
        """The next one, or `{"error": ...}`, after which the worker has ended."""
        try:
            line = self.lines.get(timeout=limit)
        except queue.Empty:
            self.kill()
            return {"error": f"stopped after {limit:.0f} s"}
        if line is not None:
            return json.loads(line)
        self.stop()
        said = self.log.read_text().strip()[-1000:]
        return {"error": said or f"ended with {self.process.returncode}"}

    def ask(self, limit: float) -> Row:
        """For a step."""
        with contextlib.suppress(BrokenPipeError):  # the answer says why
            self.process.stdin.write("step\n")
            self.process.stdin.flush()
        return self.answer(limit)

    def stop(self) -> None:
        """It ends by itself where nothing more is asked, or else is killed."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        self.process.stdout.close()

    def kill(self) -> None:
        self.process.kill()
        self.stop()

    @property
    def ended(self) -> bool:
        return self.process.returncode is not None


class Session:
    """Starts workers, and kills those that are left at its end.

    Args:
        folder: for plans, compiled programs and logs.
    """

    def __init__(self, folder: Path):
        self.folder, self.workers = folder, []

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *raised: object) -> None:
        for worker in self.workers:
            if not worker.ended:
                worker.kill()

    def start(self, python: Path, script: str, *arguments: str) -> Worker:
        command = [str(python), str(WORKERS / script), *arguments]
        log = self.folder / f"{len(self.workers)}.log"
        self.workers.append(Worker(command, self.environment(), log))
        return self.workers[-1]

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "JAX_PLATFORMS": "cpu",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": str(ROOT),
            "SNNJAX_CACHE_DIR": str(self.folder / "figures"),
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
