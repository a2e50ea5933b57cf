"""The tools that read deploy/: where each is, and how it is run."""

import os
import shutil
import sys
from pathlib import Path

from tests.support.cli import HOUSE
from tests.support.pinned import installed
from tests.support.processes import Ended, ended, start

DEPLOY = HOUSE / "deploy"
PINS = Path(__file__).parent / "requirements.txt"


def packages() -> Path:
    """Where those are that PyPI has."""
    return installed(PINS, "deployment")


def found(name: str) -> str:
    """One that comes with the system."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert path is not None, f"{name} is needed; .ci/run installs it"
    return path


async def run(*command: str, **environment: str) -> Ended:
    """Run one to its end, in the folder of the house."""
    own = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment}
    process = await start(*command, name=Path(command[0]).name, cwd=HOUSE, env=own)
    return await ended(process)


async def run_packaged(name: str, *arguments: str, **environment: str) -> Ended:
    return await run(str(packages() / "bin" / name), *arguments, **environment)


def as_module(name: str) -> tuple[str, ...]:
    """The command for one that is written in Python."""
    return (sys.executable, "-m", name)
