"""Packages that only one folder of tests needs, installed into build/."""

import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build"


@cache
def installed(pins: Path, name: str) -> Path:
    """Return the folder with the pinned packages. Install them if they are missing."""
    packages = BUILD / name
    kept = packages / pins.name
    if not kept.is_file() or kept.read_bytes() != pins.read_bytes():
        BUILD.mkdir(exist_ok=True)
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
            with suppress(OSError):  # another run installed it first
                Path(f"{folder}/all").rename(packages)
    return packages
