"""A flow: what happens between Continue and the answer, without doing any of it.

A Talk is a generator of requests that is sent the responses, so that a flow opens no socket and a
test needs no network: send it a list of replies.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeAlias, TypeVar

import httpx

from flows.elicitation.states import Elicitation, Json

T = TypeVar("T")
Talk: TypeAlias = Generator[httpx.Request, httpx.Response, T]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedirectContext:
    """What an attempt is given for its way out and back.

    `return_url` is where the provider is to send the browser, and `state` what must come back
    with it, as the parameter `state`; the record holds only its hash. `switches` says that the
    person wants another account than the one they are signed in with there.
    """

    number: int
    return_url: str
    state: str = field(repr=False)
    now: datetime
    switches: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """Where the browser goes after Continue.

    `kept`, if any, takes the place of what the attempt keeps, before the browser is sent on.
    """

    url: str = field(repr=False)
    kept: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackParams:
    """What came back with the browser: each parameter with all its values."""

    parameters: tuple[tuple[str, str], ...] = field(repr=False)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.parameters if key == name]


class Flow(Protocol):
    """One kind of elicitation that leads elsewhere."""

    def prepare(self, elicitation: Elicitation, trip: RedirectContext) -> Json:
        """What the attempt must keep; it is stored before anything leaves."""
        ...

    def begin(self, elicitation: Elicitation, trip: RedirectContext) -> Talk[Redirect]:
        """Go out; `elicitation.attempt.kept` is what `prepare` gave."""
        ...
