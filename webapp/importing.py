"""The code of an author or operator: importing a module by its name, and calling a function.

Risks: the author's folder has the same name as an installed package. The working directory
therefore comes after the installed packages. A missing module could be confused with a module whose
dependency is missing, so the two cases have different errors. Another risk is a module that is
written for another version of a library than the installed version, so the error says what to
change.
"""

import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Awaitable, Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TypeVar, cast

import anyio.to_thread

A = TypeVar("A")
T = TypeVar("T")
_LIBRARY_FOLDERS = tuple(
    f"{folder}/"
    for folder in (
        *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
        *(Path(__file__).parents[1] / package for package in ("flows", "webapp")),
    )
)
_FASTMCP = "fastmcp"
_FASTMCP_NEEDED = 4


def imported(name: str) -> ModuleType:
    """Import a module by its dotted name. Raises ImportError with a sentence for the terminal.

    Any other exception of the module is raised unchanged.
    """
    here = Path.cwd()
    if str(here) not in sys.path:
        sys.path.append(str(here))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(_why_not(error, name, here)) from error


async def result_of(function: Callable[[A], Awaitable[T] | T], argument: A) -> T:
    """Call a function, in a thread if it is not async, because it may read a database."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    ):
        found = function(argument)
    else:
        found = await anyio.to_thread.run_sync(function, argument, abandon_on_cancel=True)
    return cast("T", await found if inspect.isawaitable(found) else found)


def is_authors(path: str) -> bool:
    """Return True if this file belongs to neither Python, nor a library, nor this project."""
    return not path.startswith(("<", *_LIBRARY_FOLDERS))


def raised_at(error: BaseException) -> str:
    """Return `file:line` of the innermost place in the author's code, else in any code."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    places = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    known = [each for each in places if not each[0].startswith("<")]
    of_author = [each for each in known if is_authors(each[0])]
    for file, line in reversed(of_author or known):
        return f"{file}:{line}"
    return ""


def shadowed(module: ModuleType) -> str:
    """Return a hint if an installed package hides a file or folder of the author with that name."""
    here = Path.cwd()
    for mine in (here / f"{module.__name__}.py", here / module.__name__):
        if mine.exists() and here not in Path(file_of(module)).parents:
            return (
                f" An installed package ({file_of(module)}) hides your {mine.name}, which has the "
                "same name. Rename yours."
            )
    return ""


def file_of(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "a namespace package"


def _why_not(error: ImportError, wanted: str, here: Path) -> str:
    missing = error.name or wanted
    is_missing = isinstance(error, ModuleNotFoundError)
    if is_missing and (missing == wanted or wanted.startswith(f"{missing}.")):
        return f"There is no module {missing!r} in {here}, and no installed package has that name."
    above = sys.modules.get(missing.partition(".")[0])
    hint = shadowed(above) if above is not None else ""
    if is_missing and missing == _FASTMCP:
        hint = " Install it with: pip install 'elicit-url[fastmcp]'"
    at = raised_at(error)
    says = f"{at}: " if at else ""
    if is_missing:
        says += f"{wanted} imports {missing!r}, which cannot be found."
    else:
        says += f"{wanted} could not be imported: {str(error).rstrip('.')}."
    return says + (_of_another_version(error) or hint)


def _of_another_version(error: ImportError) -> str:
    """Return how to fix a module that is written for an earlier version of its library."""
    modules = {f.f_globals.get("__name__", "") for f, _ in traceback.walk_tb(error.__traceback__)}
    if any(name.partition(".")[0] == _FASTMCP for name in modules):
        installed = _version(_FASTMCP)
        if installed and int(installed.partition(".")[0]) < _FASTMCP_NEEDED:
            return (
                f" FastMCP {installed} is installed; elicit-url needs {_FASTMCP_NEEDED}: "
                "pip install 'elicit-url[fastmcp]'"
            )
    missing = error.name or ""
    if missing.partition(".")[0] != "mcp":
        return ""
    is_certain = missing.startswith("mcp.server.fastmcp") or "'FastMCP'" in str(error)
    library = str(error).removeprefix(f"No module named {missing!r}").strip(" .")
    its_own = f" mcp says: {library}." if isinstance(error, ModuleNotFoundError) and library else ""
    return (
        f" {'It' if is_certain else 'Perhaps it'} is written for mcp 1. elicit-url needs mcp 2, "
        f"and mcp {_version('mcp')} is installed: change the import to "
        "`from mcp.server.mcpserver import MCPServer`, or keep your server in an environment of "
        f"its own.{its_own}"
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
