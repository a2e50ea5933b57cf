"""Flows: the requests between Continue and the answer, without performing them.

A Talk is a generator that yields requests and receives responses. So a flow opens no socket, and a
test needs no network: it sends a list of replies.
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
    """The data of an attempt for its redirect and return.

    `return_url` is where the provider sends the browser, and `state` is the parameter that must
    come back with the browser; the record stores only the hash of `state`. `switches`: the person
    wants another account than the one they are signed in with at the provider. `tenant` is what the
    person typed as their address at the provider, if the page asked for it.
    """

    number: int
    return_url: str
    state: str = field(repr=False)
    now: datetime
    switches: bool = False
    tenant: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """The address to which the browser goes after Continue.

    `kept`, if any, replaces the attempt's stored data before the redirect.
    """

    url: str = field(repr=False)
    kept: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackParams:
    """The parameters that the browser brought back, each with all its values."""

    parameters: tuple[tuple[str, str], ...] = field(repr=False)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.parameters if key == name]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupFinding:
    """A result of checking this server's registration at a provider.

    `fix` says what to do and names the setting.

    A finding with `fix` and without `is_wrong` means that the check could not be completed.
    """

    says: str
    fix: str | None = None
    is_wrong: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupReport:
    """The results of checking a registration. `told_at` is the provider's Date header."""

    findings: tuple[SetupFinding, ...]
    told_at: str | None = None


class Flow(Protocol):
    """The flow of a kind of elicitation that leads to another site."""

    def prepare(self, elicitation: Elicitation, context: RedirectContext) -> Json:
        """Return the data that the attempt must store before any request is sent."""
        ...

    def begin(self, elicitation: Elicitation, context: RedirectContext) -> Talk[Redirect]:
        """Make the requests and return the redirect, from the stored data of `prepare`."""
        ...
