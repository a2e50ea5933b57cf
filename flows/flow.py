"""A flow: what happens between Continue and the answer, without doing any of it.

A Talk is a generator of requests that is sent the responses, so that a flow opens no socket and a
test needs no network: send it a list of replies.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import httpx

from flows.elicitation import Elicitation, Json

T = TypeVar("T")
Talk: TypeAlias = Generator[httpx.Request, httpx.Response, T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """Where the browser goes after Continue."""

    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What came back with the browser, checked to be the bound one."""

    parameters: Mapping[str, str]


class Flow(Protocol):
    """One kind of elicitation, between Continue and the answer."""

    def begin(self, elicitation: Elicitation) -> Talk[Departure]: ...
    def finish(self, elicitation: Elicitation, arrival: Arrival) -> Talk[Json]: ...
