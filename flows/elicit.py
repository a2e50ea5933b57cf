"""The verbs: what a tool writes to ask a person."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import cast

from flows.elicitation import Completion, Json
from flows.errors import ElicitError, InvalidQuestion
from flows.question import (
    DEFAULT_TIMEOUT,
    Link,
    Question,
    ReturningRequest,
    current_asker,
    tell_asker,
)
from flows.visit import Visit, is_origin, origin_of

__all__ = ["can", "complete_elicitation", "once", "url"]


def url(
    message: str,
    url: str | Callable[[Link], str],
    *,
    origins: Sequence[str] = (),
    wait_for_completion: bool = True,
    elicitation_id: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Mapping[str, Json]]:
    """Ask the person to visit an address, and wait until its service says that it is done.

    `url` is text, or a function of the link; a function needs `origins`, the places it may lead
    to, as literals. The answer is the object that the completion carried. With
    `wait_for_completion=False` the answer is there as soon as the person agrees to go.
    Raises InvalidQuestion for an address that is not https (http on loopback).
    """
    try:
        return _visit(
            message,
            url,
            origins=origins,
            waits=wait_for_completion,
            elicitation_id=elicitation_id,
            key=key,
            timeout=timeout,
        )
    except InvalidQuestion as error:
        tell_asker(error)
        raise


async def once(name: str, work: Callable[[str], Awaitable[Json]]) -> Json:
    """Do `work` once in a call, however often the tool's body runs again.

    `work` is given an idempotency key to pass on to whom it calls: if the process dies between
    the work and its record, it runs again with the same key. What comes back has been through
    JSON, the first time too. Raises InvalidQuestion if the result is no JSON.
    """
    if not name:
        error = InvalidQuestion("once needs a name that is unique within the tool.")
        tell_asker(error)
        raise error
    return await current_asker().once(name, work)


def can(mode: str) -> bool:
    """Whether the caller's client declared the elicitation mode `form` or `url`."""
    return current_asker().can(mode)


async def complete_elicitation(
    elicitation: str | ReturningRequest, content: Mapping[str, Json] | None = None
) -> Completion:
    """Unblock the tool that waits: the one door to it.

    By id it is for trusted code, in any process on the same store, and finishes the kind `url`
    only. From a public route pass the request itself: it must carry the link's return token (the
    query parameter `elicitation`) and come from the browser that pressed Continue.
    """
    try:
        if isinstance(elicitation, str):
            return await current_asker().complete(elicitation, content or {})
        return await current_asker().complete_return(elicitation, content or {})
    except ElicitError as error:
        tell_asker(error)
        raise


def _visit(
    message: str,
    url: str | Callable[[Link], str],
    *,
    origins: Sequence[str],
    waits: bool,
    elicitation_id: str | None,
    key: str | None,
    timeout: timedelta,
) -> Question[Mapping[str, Json]]:
    if isinstance(url, str):
        literal = (origin_of(url), *origins)
    elif not origins:
        raise InvalidQuestion("A function as url needs origins=, the places it may lead to.")
    else:
        literal = tuple(origins)
    for origin in literal:
        if not is_origin(origin):
            raise InvalidQuestion(f"{origin!r} is no origin; write scheme://host, without a path.")
    if elicitation_id is not None and not re.fullmatch(r"[A-Za-z0-9._~-]{1,128}", elicitation_id):
        raise InvalidQuestion("elicitation_id must be 1 to 128 letters, digits or . _ ~ -")
    return Question(
        message=message,
        request=Visit(
            message=message,
            url=url,
            origins=tuple(dict.fromkeys(literal)),
            waits=waits,
            elicitation_id=elicitation_id,
        ),
        answer=_mapping,
        key=key,
        timeout=timeout,
    )


def _mapping(content: Json) -> Mapping[str, Json]:
    return cast("Mapping[str, Json]", content if isinstance(content, Mapping) else {})
