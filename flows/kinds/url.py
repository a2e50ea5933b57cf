"""The kind `url`: a visit to any address, which ends when its service reports completion.

Risks: the address is not what the tool's author wrote, but contains text of a model or an attacker.
Its origin must therefore be a literal in the code, and the page shows the origin.
"""

import inspect
import re
import string
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias, cast
from urllib.parse import quote

import httpx

from flows.elicitation.flow import Redirect, RedirectContext
from flows.elicitation.misuse import must_be_listed, must_run_when_called
from flows.elicitation.states import Elicitation, Json
from flows.errors import ElicitError, Failed, InvalidQuestion
from flows.origin import is_origin, origin_of
from flows.question import DEFAULT_TIMEOUT, Link, Question, verb

UrlOrBuilder: TypeAlias = str | Callable[[Link], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request to visit an address."""

    kind: str = field(default="url", init=False, repr=False, compare=False)
    message: str
    url: UrlOrBuilder
    origins: tuple[str, ...]
    waits: bool = True

    def facts(self) -> Json:
        fixed = self.url if isinstance(self.url, str) else None
        return {
            "message": self.message,
            "origins": list(self.origins),
            "url": fixed,
            "waits": self.waits,
        }

    def address(self, link: Link) -> str:
        """Return the address for this link.

        Raises:
            InvalidQuestion: The address is not allowed, or the author's function raised.
            Failed: The author's function could not reach its service.
        """
        try:
            url = self.url if isinstance(self.url, str) else self.url(link)
        except ElicitError:
            raise
        except Exception as error:
            inner = error.__traceback__ and error.__traceback__.tb_next
            line = f" in line {inner.tb_lineno}" if inner else ""
            why = f"Nobody was asked: the function of url= raised {type(error).__name__}{line}."
            if isinstance(error, OSError | httpx.HTTPError):
                raise Failed(f"{why} Call the tool again later.") from error
            raise InvalidQuestion(why) from error
        if not isinstance(cast("object", url), str):
            raise InvalidQuestion(
                f"The function of url= must return an address, not {type(url).__name__}."
            )
        origin = origin_of(url)
        if origin not in self.origins:
            raise InvalidQuestion(
                f"The address leads to {origin}, which is not among origins={self.origins!r}."
            )
        # Keep the origin that was checked, and escape the rest for the Location header.
        head = re.match(r"[^/]+//[^/?#]*", url)
        return origin + quote(url[head.end() if head else 0 :], safe=string.printable)


@verb
def url(
    message: str,
    url: UrlOrBuilder,
    *,
    origins: Sequence[str] = (),
    wait_for_completion: bool = True,
    elicitation_id: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Mapping[str, Json]]:
    """Ask the person to visit an address, and wait until its service reports completion.

    Args:
        message: The question, as the person reads it, of up to 2000 characters.
        url: The address, or a function of the link. A function is called after the question is
            stored, so a service that the function contacts can already complete the question. After
            a crash, the function is called a second time.
        origins: The origins of the addresses that the function can return, as literals.
        wait_for_completion: If False, the await returns as soon as the person agrees to open the
            address.
        elicitation_id: An id of your own, with which trusted code may complete the question.
        key: With a key, the question is the same in every call of the tool, even if the calls have
            different arguments.
        timeout: How long the question stays open: 1 second to 7 days.

    Returns:
        The question. Awaiting it returns the object that the completion contained.

    Raises:
        InvalidQuestion: The address is not https (http is allowed on loopback), an origin is not
            valid, or the function is async or takes no link. In a tool, the error is InvalidUse and
            names the line.
        NotAccepted: The await raises one of its subclasses, such as Expired, if the question was
            not completed.
    """
    must_be_listed("origins", origins)
    if not isinstance(url, str) and not origins:
        raise InvalidQuestion(
            "url= is a function, so origins= is required: list the origins that the "
            "function's addresses can have."
        )
    if not isinstance(url, str):
        _must_build_addresses(url)
    literal = (origin_of(url), *origins) if isinstance(url, str) else tuple(origins)
    for origin in literal:
        if not is_origin(origin):
            raise InvalidQuestion(
                f"{origin!r} is not an origin; write scheme://host, without a path."
            )
    return Question(
        message=message,
        request=Visit(
            message=message,
            url=url,
            origins=tuple(dict.fromkeys(literal)),
            waits=wait_for_completion,
        ),
        answer=_mapping,
        key=key,
        elicitation_id=elicitation_id,
        timeout=timeout,
    )


def _must_build_addresses(build: object) -> None:
    """Check that `build` can be called with the link, and returns a text at once."""
    must_run_when_called(cast("Callable[..., object]", build), "The function of url=")
    if inspect.iscoroutinefunction(build):
        raise InvalidQuestion(
            "The function of url= must not be async. Move the awaited work into `once`, before "
            "the question, and let the function only return the address."
        )
    try:
        inspect.signature(cast("Callable[..., object]", build)).bind(None)
    except TypeError:
        raise InvalidQuestion(
            "url= must be an address, or a function of the link, such as "
            '`lambda link: f"https://pay.example/?back={link.return_url}"`.'
        ) from None
    except ValueError:  # a function written in C has no signature
        pass


class VisitFlow:
    """The flow of a visit. No requests are made: the address was built with the question."""

    def prepare(self, elicitation: Elicitation, context: RedirectContext) -> Json:
        return None

    def begin(
        self, elicitation: Elicitation, context: RedirectContext
    ) -> Generator[httpx.Request, httpx.Response, Redirect]:
        yield from ()
        assert elicitation.request.url is not None
        return Redirect(url=elicitation.request.url)


def _mapping(content: Json) -> Mapping[str, Json]:
    return cast("Mapping[str, Json]", content if isinstance(content, Mapping) else {})
