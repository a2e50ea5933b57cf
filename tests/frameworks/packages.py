"""The packages of each framework, installed separately from those of this project."""

import os
import re
from pathlib import Path

from tests.support.cli import PROJECT
from tests.support.pinned import installed

HERE = Path(__file__).parent


def packages_of(framework: str) -> str:
    """Return a PYTHONPATH with the framework's packages, its dependencies and this project."""
    name = re.sub("(_asking|_legacy|_patient)+$", "", framework)
    names = [name, "langchain"] if name == "langchain_mcp_adapters" else [name]
    paths = [str(installed(HERE / f"{one}.txt", f"framework_{one}")) for one in names]
    return os.pathsep.join([*paths, str(PROJECT)])
