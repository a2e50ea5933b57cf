"""The tools that read deploy/: where each is, and how to run it."""

import os
import shutil
from pathlib import Path

from tests.support.cli import PROJECT
from tests.support.pinned import installed
from tests.support.processes import Ended, ended, start

DEPLOY = PROJECT / "deploy"
PINS = Path(__file__).parent / "requirements.txt"


def packages() -> Path:
    """Return the folder with the tools from PyPI."""
    return installed(PINS, "deployment")


def found(name: str) -> str:
    """Return the path of a tool that is installed in the system."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert path is not None, f"{name} is needed; .ci/run installs it"
    return path


async def run(*command: str, **environment: str) -> Ended:
    """Run a command to completion, in the project's folder."""
    own = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment}
    process = await start(*command, name=Path(command[0]).name, cwd=PROJECT, env=own)
    return await ended(process)


async def run_packaged(name: str, *arguments: str, **environment: str) -> Ended:
    return await run(str(packages() / "bin" / name), *arguments, **environment)
