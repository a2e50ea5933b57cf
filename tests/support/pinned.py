"""Packages that only one folder of tests needs, installed into build/."""

import fcntl
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build"


@contextmanager
def installing(name: str) -> Iterator[None]:
    """Let one process at a time install these packages, so that the workers of a run share them."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released with the file, also if this process dies
        yield


@cache
def installed(pins: Path, name: str) -> Path:
    """Return the folder with the pinned packages. Install them if they are missing."""
    packages = BUILD / name
    stored = packages / pins.name
    with installing(name):
        if stored.is_file() and stored.read_bytes() == pins.read_bytes():
            return packages
        with tempfile.TemporaryDirectory(dir=BUILD, prefix=f"{name}.") as folder:
            subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"),
                    *("install", "--no-deps", "--require-hashes", "--no-compile"),
                    *("--requirement", str(pins), "--target", f"{folder}/all"),
                ],
                check=True,
                timeout=600,
            )
            shutil.copy(pins, f"{folder}/all")
            shutil.rmtree(packages, ignore_errors=True)
            Path(f"{folder}/all").rename(packages)
    return packages
