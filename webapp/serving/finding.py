"""Import of the author's server by `module:attribute`: the server, or a function that creates it.

If somebody writes the path of a file instead of a module, the error suggests the right text. The
text is found by parsing the file, without running the file.
"""

import ast
import inspect
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mcp.server.lowlevel import Server

from webapp.command import CommandRefused
from webapp.importing import file_of, imported, raised_at, shadowed
from webapp.mcp.callers import must_be_named

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_KINDS = frozenset({"MCPServer", "FastMCP", "Server"})
_USUAL = "mcp"


def load(name: str, *, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> Any:
    """Return the author's server.

    `run` runs an async factory in the event loop that will serve the server.

    Raises CommandRefused.
    """
    try:
        server = _made(find_server(name), name, run)
    except (ImportError, TypeError) as error:
        raise CommandRefused(str(error)) from error
    except _NotMade as error:
        raise CommandRefused(f"{name} could not make a server{error}") from error
    except Exception as error:
        traceback.print_exc()
        raise CommandRefused(f"{name} could not be imported{_where(error)}") from error
    try:
        must_be_named(server)
    except ValueError as error:
        raise CommandRefused(str(error)) from error
    return server


def _where(error: Exception) -> str:
    at = raised_at(error)
    return f": {type(error).__name__}{f' at {at}' if at else ''}; see the traceback above."


class _NotMade(Exception):
    """The author's function raised an error. The message says where; the traceback is printed."""


def find_server(name: str) -> Any:
    """Return the server or factory named by `module:attribute`. The default attribute is `mcp`.

    Raises ImportError or TypeError with a message for the terminal. Other exceptions of the module
    are not caught.
    """
    module_name, colon, attribute = name.partition(":")
    is_dotted = all(part.isidentifier() for part in module_name.split("."))
    if not is_dotted or module_name.endswith(".py") or (colon and not attribute):
        raise ImportError(_how_to_name(name))
    module = imported(module_name)
    found = getattr(module, attribute or _USUAL, None)
    if found is None:
        raise ImportError(
            f"{module_name} ({file_of(module)}) has no attribute {attribute or _USUAL!r}."
            + (shadowed(module) or _instead(module))
        )
    if not is_server(found) and not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__}, {_NO_SERVER}")
    return found


_NO_SERVER = "not an MCPServer, FastMCP or low-level server, nor a function that returns one."


def is_server(found: object) -> bool:
    """Return True for a server of either library, or a custom server that lists its tools."""
    looks_so = hasattr(found, "list_tools") and hasattr(found, "name")
    return isinstance(found, Server) or (looks_so and not isinstance(found, type))


def place_of(name: str) -> str:
    """Return the origin of the server `name`: its module's file and the attribute in it.

    The server must have been imported before.
    """
    module_name, _, attribute = name.partition(":")
    module = sys.modules[module_name]
    return place_in(module_name, getattr(module, "__file__", None), attribute or _USUAL)


def place_in(module_name: str, file: str | None, attribute: str) -> str:
    """Return the origin of a server from its parts.

    For an installed module, the module's name is used instead of the file, because the same module
    has other paths in other environments.
    """
    path = Path(file).absolute() if file else None
    is_installed = path is None or not _INSTALLED.isdisjoint(path.parts)
    return f"{module_name if is_installed else path}:{attribute}"


def _made(found: Any, name: str, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> Any:
    """Return the server, calling its factory if needed. Raises TypeError or _NotMade."""
    if is_server(found):
        return found
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} cannot be called without arguments ({error}); a function that makes a server "
            "must have no required arguments."
        ) from error
    try:
        server = found()
        if inspect.isawaitable(server):
            server = run(_awaited(server))
    except Exception as error:
        traceback.print_exc()
        raise _NotMade(_where(error)) from error
    if not is_server(server):
        raise TypeError(f"{name} returned a {type(server).__name__}, {_NO_SERVER}")
    return server


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _how_to_name(name: str) -> str:
    """Return a message with the text to write instead of a path."""
    path_text, _, attribute = name.partition(":")
    plain = path_text.removeprefix("./")
    path = Path(plain)
    problem = f"{name!r} does not name a server: write module:attribute, "
    if path.suffix == ".py" and path.is_file():
        named = [attribute] if attribute else list(_named_in(path))
        is_below = not path.is_absolute() and ".." not in path.parts
        module = ".".join(path.with_suffix("").parts) if is_below else path.stem
        lines = " or ".join(f"{module}:{each}" for each in named or [_USUAL])
        where = "" if is_below else f", in its folder {path.resolve().parent}"
        return f"{problem}as in {lines} (no path, no .py){where}."
    meant = plain.removesuffix(".py").replace("/", ".")
    is_near = all(part.isidentifier() for part in meant.split("."))
    return (
        f"{problem}as in {meant if is_near else 'my_tools'}:{attribute or _USUAL} (no path, "
        "no .py)."
    )


def _instead(module: ModuleType) -> str:
    """Return a suggestion of servers in this module."""
    names = [name for name, found in vars(module).items() if is_server(found)]
    if not names:
        return ""
    return f" Perhaps {' or '.join(f'{module.__name__}:{name}' for name in names)} is meant."


def _named_in(path: Path) -> Iterator[str]:
    """Yield names in a file that hold a server, then functions annotated to return one."""
    try:
        body = ast.parse(path.read_text("utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and _makes_server(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
    functions = (n for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    for function in functions:
        if function.returns is not None and not _KINDS.isdisjoint(_names_in(function.returns)):
            yield function.name


def _makes_server(value: ast.expr | None) -> bool:
    """Return True for a call like `MCPServer("x")` or `FastMCP.from_openapi(...)`."""
    return isinstance(value, ast.Call) and not _KINDS.isdisjoint(_names_in(value.func))


def _names_in(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
