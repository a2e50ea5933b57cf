"""The work of `once`: how it is called, and how its result becomes JSON and is read back.

Risks: a result that cannot be stored is noticed after the work was done, or the stored result has
another type than the first one. The annotation of the work is therefore checked before it runs,
and each result, the first one as well, is the stored JSON converted to the annotated type.
"""

import dataclasses
import inspect
import json
import typing
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, cast
from uuid import UUID

from pydantic import (
    BaseModel,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError, to_jsonable_python

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion

_ASYNC = (Awaitable, Coroutine)
# Results of these classes become plain JSON if the work has no annotation.
_PLAIN = (BaseModel, Decimal, UUID, date, time, timedelta)


class OnceWork:
    """The work that an author passed to `once(name, work)`.

    `work` is a function or an unstarted coroutine. A function may return an awaitable. It receives
    the idempotency key if it has a parameter for it. `returns` is the type of the result. Without
    `returns`, the function's annotation is used. Without an annotation, the result is plain JSON.

    Raises:
        InvalidQuestion: `work` cannot be called, or its result could not be stored.
    """

    def __init__(self, name: str, work: object, returns: Any) -> None:
        self._work = work
        if inspect.iscoroutine(work):
            self._takes_key = False
        elif callable(work):
            self._takes_key = _takes_key(name, work)
            returns = _annotation(work) if returns is None else returns
        else:
            raise InvalidQuestion(
                f"once({name!r}): work must be a function, not {type(work).__name__}. Pass the "
                "function itself, without calling it."
            )
        self._adapter = _adapter(name, returns)

    async def __call__(self, key: str) -> Json:
        """Do the work and return its result as JSON. A plain function runs on the event loop."""
        work: Any = self._work
        if inspect.iscoroutine(work):
            given = await work
        else:
            given = work(key) if self._takes_key else work()
            if inspect.isawaitable(given):
                given = await given
        return _as_json(given, self._adapter)

    def typed(self, stored: Json) -> Any:
        """Convert the stored result to the annotated type. A result of another type stays JSON."""
        if self._adapter is None:
            return stored
        try:
            return self._adapter.validate_json(json.dumps(stored))
        except ValidationError:
            return stored

    def close(self) -> None:
        """Close a coroutine that was not started, because its result was already stored."""
        if inspect.iscoroutine(self._work):
            self._work.close()


def _as_json(given: Any, adapter: TypeAdapter[Any] | None) -> Json:
    """Return the result as JSON, or unchanged if it cannot be JSON: the asker then refuses it."""
    if adapter is not None:
        with suppress(PydanticSerializationError):  # the annotation is wrong
            return cast("Json", adapter.dump_python(given, mode="json", warnings="error"))
    if isinstance(given, _PLAIN) or dataclasses.is_dataclass(given):
        with suppress(PydanticSerializationError):
            return cast("Json", to_jsonable_python(given))
    return cast("Json", given)


def _takes_key(name: str, work: Callable[..., Any]) -> bool:
    """Return True if `work` has a parameter for the idempotency key.

    A parameter with a default is for the key only if it is named `key`, or if the default is None:
    authors bind a loop's variable as `lambda item=item: ...`.
    """
    try:
        parameters = inspect.signature(work).parameters.values()
    except (TypeError, ValueError):  # a function written in C
        return True
    positional = [one for one in parameters if one.kind in _POSITIONAL]
    others = (*positional[1:], *(one for one in parameters if one.kind is one.KEYWORD_ONLY))
    if any(one.default is one.empty for one in others):
        raise InvalidQuestion(
            f"once({name!r}): work needs more than one argument. Write a function whose only "
            "parameter, if any, is the idempotency key, such as `lambda key: charge(order, key)`."
        )
    if not positional:
        return any(one.kind is one.VAR_POSITIONAL for one in parameters)
    first = positional[0]
    return first.default in (first.empty, None) or first.name in ("key", "idempotency_key")


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _annotation(work: object) -> Any:
    """Return the annotated type of the result, or None if there is none."""
    while isinstance(work, partial):
        work = work.func
    if not inspect.isroutine(work):
        work = type(work).__call__
    try:
        returns = typing.get_type_hints(work, include_extras=True).get("return")
    except (NameError, TypeError):  # a name that exists for type checkers only
        return None
    if typing.get_origin(returns) in _ASYNC and not inspect.iscoroutinefunction(work):
        returns = typing.get_args(returns)[-1]
    return None if isinstance(returns, typing.TypeVar) or returns is Any else returns


def _adapter(name: str, returns: Any) -> TypeAdapter[Any] | None:
    if returns is None or returns in _ASYNC:
        return None
    try:
        return TypeAdapter(returns)
    except PydanticSchemaGenerationError:
        shown = getattr(returns, "__name__", returns)
        raise InvalidQuestion(
            f"once({name!r}): work returns {shown}, which cannot be stored. Return JSON, a "
            "pydantic model, a dataclass, or a type that pydantic can convert to JSON and back."
        ) from None
    except (PydanticUserError, NameError, RecursionError):  # the annotation cannot be resolved
        return None
