"""Marks on a tool, stored on its function and on every function that it wraps.

Risks: a mark is not found. The mark is therefore written to all layers (the tool and everything
that it wraps), so the order of decorators does not matter. A decorator that hides what it wraps
(without `functools.wraps`) also hides the marks below it. A mark that removes a gate could also
affect another tool that shares a layer, so such a mark is written to one layer only
(`set_mark_on`).
"""

from collections.abc import Callable
from functools import partial
from typing import cast

from flows.elicitation.unasked import location_of_call
from flows.errors import InvalidQuestion
from flows.question import asks_without_tool


def must_mark_a_tool(mark: str) -> None:
    """Raise InvalidQuestion in an `asking` block, except while a module is being imported."""
    if asks_without_tool() and location_of_call() is not None:
        raise InvalidQuestion(
            f"{mark} marks a tool of an MCP server, and a block `asking` is not a tool. Await "
            "the questions themselves here."
        )


def layers_of(tool: object) -> list[object]:
    """Return the tool and everything that it wraps: functions, methods, partials, library tools."""
    layer, layers, seen = tool, list[object](), set[int]()
    while layer is not None and id(layer) not in seen:
        seen.add(id(layer))
        layers.append(layer)
        layer = _below(layer)
    return layers


def set_mark(tool: object, name: str, mark: Callable[[object], object]) -> bool:
    """Set each layer's mark to the result of `mark`. Return False if nothing could be marked."""
    layers = layers_of(tool)
    # If `@mcp.tool` ran before the mark, the server calls an inner layer: mark all layers.
    if isinstance(tool, partial):  # only the partial: its function may be served as another tool
        layers = layers[:1]
    marked = [(layer, mark(layer)) for layer in layers]
    is_written = [_write(layer, name, value) for layer, value in marked]
    return any(is_written) and any(map(callable, layers))


def set_mark_on(layer: object, name: str, mark: object) -> bool:
    """Set the mark on this layer only. Return False if the layer cannot be marked."""
    return callable(layer) and _write(layer, name, mark)


def own_layer(tool: object) -> object:
    """Return the layer that belongs to this tool only: the function itself, or a tool's `fn`."""
    if isinstance(tool, staticmethod):
        return cast("staticmethod[..., object]", tool).__func__
    function: object = getattr(tool, "fn", None)  # attribute of the libraries' tool objects
    return function if callable(function) else tool


def _write(layer: object, name: str, value: object) -> bool:
    try:
        setattr(layer, name, value)
    except (AttributeError, TypeError, ValueError):  # a bound method, or a library's pydantic model
        return False
    return True


def _below(layer: object) -> object:
    if isinstance(layer, partial):
        return cast("partial[object]", layer).func
    for name in ("__wrapped__", "__func__", "fn"):
        inner: object = getattr(layer, name, None)
        if callable(inner):
            # For a callable object, the library serves the object's `__call__` method.
            is_call = name == "__func__" and getattr(inner, "__name__", "") == "__call__"
            return getattr(layer, "__self__", None) if is_call else inner
    return None
