"""Importing: an author's or an operator's own module, by its name.

What could go wrong: a folder of theirs has a name of ours, so the working directory comes behind
the installed packages; and a module that is missing is told from one that it wants to import.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType


def imported(name: str) -> ModuleType:
    """Raises ImportError in words for the terminal; whatever else the module raises comes through.

    The name is one of Python's, with dots.
    """
    here = Path.cwd()
    if str(here) not in sys.path:
        sys.path.append(str(here))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(_why_missing(error, name, here)) from error


def shadowed(module: ModuleType) -> str:
    """What to add if a file or folder of the author's stands behind a package of that name."""
    here = Path.cwd()
    for mine in (here / f"{module.__name__}.py", here / module.__name__):
        if mine.exists() and here not in Path(file_of(module)).parents:
            return (
                f" Your {mine.name} stands behind an installed package of the same name "
                f"({file_of(module)}): rename yours."
            )
    return ""


def file_of(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "a namespace package"


def _why_missing(error: ModuleNotFoundError, wanted: str, here: Path) -> str:
    missing = error.name or wanted
    if missing == wanted or wanted.startswith(f"{missing}."):
        return f"There is no module {missing!r} in {here}, nor is one installed."
    above = sys.modules.get(missing.partition(".")[0])
    hint = shadowed(above) if above is not None else ""
    if missing == "fastmcp":
        hint = " Install it with: pip install 'elicit-url[fastmcp]'"
    return f"{wanted} imports {missing!r}, which is not there." + hint
