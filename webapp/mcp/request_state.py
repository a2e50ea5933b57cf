"""The library's own requestState, sealed with keys that all our processes share.

Risks: by default each process creates its own key, so another process refuses the next request of a
call. And the default lifetime is ten minutes, while a person may take longer. So the library gets
shared keys and a longer lifetime.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from mcp.server.lowlevel import Server
from mcp.server.request_state import (
    AESGCMRequestStateCodec,
    InvalidRequestState,
    RequestStateBoundary,
    RequestStateCodec,
    RequestStateSecurity,
)

from flows.crypto.tokens import Purpose
from flows.errors import InvalidToken
from flows.question import TIMEOUT_AT_MOST
from webapp.calls.call import Call
from webapp.calls.clients import AskedClient
from webapp.calls.presenter import PresentedQuestion, Prompt
from webapp.elicitations.links import Links


def share_request_state(
    server: Any, parts: list[object], keys: Callable[[], tuple[bytes, ...]]
) -> None:
    """Configure the library's RequestStateBoundary with shared keys and a longer lifetime.

    A boundary that the author configured stays. A boundary that looks like the library's default is
    replaced, and the new boundary still opens states that the replaced boundary has sealed.
    """
    if getattr(server, "_request_state_security", None) is not None:
        return  # FastMCP sets this attribute if the author configured a boundary
    if isinstance(server, Server) and not any(isinstance(p, RequestStateBoundary) for p in parts):
        # A low-level server has no boundary by default, so add one. It comes after the tracing
        # middleware, so that spans show the sealed state, as with the other kinds of servers.
        at = sum(type(part).__name__ == "OpenTelemetryMiddleware" for part in parts[:1])
        default = RequestStateSecurity.ephemeral()
        parts.insert(at, RequestStateBoundary(default, default_audience=server.name))
    for index, part in enumerate(parts):
        if isinstance(part, RequestStateBoundary):
            # There is no public way to read the boundary's configuration.
            former = part._security  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            if _looks_default(former):
                security = RequestStateSecurity(
                    codec=Shared(keys, former=former.codec),
                    ttl=(TIMEOUT_AT_MOST + timedelta(days=1)).total_seconds(),
                )
                parts[index] = RequestStateBoundary(security, default_audience=server.name)


class Rotating:
    """The library's codec, with keys that may change between uses."""

    def __init__(self, keys: Callable[[], tuple[bytes, ...]]) -> None:
        self._keys = keys
        self._codecs = lru_cache(maxsize=1)(AESGCMRequestStateCodec)

    def seal(self, payload: bytes) -> str:
        return self._codecs(self._keys()).seal(payload)

    def unseal(self, token: str) -> bytes:
        return self._codecs(self._keys()).unseal(token)


class Shared(Rotating):
    """A codec that also opens states that were sealed with the boundary's former keys."""

    def __init__(self, keys: Callable[[], tuple[bytes, ...]], *, former: RequestStateCodec) -> None:
        super().__init__(keys)
        self._former = former.boundary_codec if isinstance(former, Shared) else former

    @property
    def boundary_codec(self) -> RequestStateCodec:
        return self._former

    def unseal(self, token: str) -> bytes:
        try:
            return super().unseal(token)
        except InvalidRequestState:
            return self._former.unseal(token)


def _looks_default(security: RequestStateSecurity) -> bool:
    default = RequestStateSecurity.ephemeral()
    return isinstance(security.codec, Shared) or (
        security.ttl == default.ttl
        and security.audience is None
        and security.bind_principal is default.bind_principal
        and type(security.codec) is type(default.codec)
    )


# A chain: the state that a request of 2026-07-28 brings from earlier requests, in a sealed token.
#
# An engine that replays its steps repeats the call from its first request whenever it continues,
# without requestState. The engine then gives the answers that it has, in the order of the
# questions. Such an engine is recognised because it answers a repeated question within moments,
# which no person can do. From then on the token counts the rounds (the questions that one result
# sends together), so that the next replay gets the same rounds.
#
# This server's part of requestState is sealed, so that no client can change it. The rest of
# requestState belongs to the tool.

KEY: Final = "elicit-url-"
MARK: Final = "elicit-url:"
BY_LINK, BY_FORM = _MODES = "uf"  # the ways in which a question was shown
# If an answer to a repeated question comes this soon, the client already had the answer.
REPLAYED_WITHIN: Final = timedelta(seconds=5)
_AT = "@"  # marks an entry with a time: the questions listed after it were sent then
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Out(NamedTuple):
    """The way in which a question was sent: by link or form.

    `at` is the time when it was first sent, if it is not answered yet.
    """

    mode: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The run, the number of rounds and the client's answers that a request brings.

    `shown` has the run's questions that were sent to the client, by index, with how and when each
    was sent. The meaning of an answer depends on how its question was sent, and not on what this
    request declares. `dismissed` has the names of questions that the client dismissed earlier. A
    name belongs to one question, not to a place, so a dismissal never applies to another question
    at the same place.

    `accounts` are the accounts that the body received, by question digest. `run_key` is the key of
    the call that received the accounts; the call's run may not be stored yet. `began_again_at` is
    the time when this chain began, if the client had made the same call before. `replayed` are the
    rounds of an engine that replays, see `AskedStep.after`.
    """

    answers: Mapping[str, Any]  # to this server's questions
    responses: Mapping[str, Any]  # to the tool's own requests
    foreign: str | None  # the tool's own requestState
    run_id: str | None = None
    rounds: int = 0
    shown: Mapping[int, Out] = field(default_factory=dict[int, Out])
    dismissed: frozenset[str] = frozenset()
    accounts: Mapping[str, str] = field(default_factory=dict[str, str])
    run_key: str | None = None
    began_again_at: datetime | None = None
    replayed: tuple[str, ...] = ()


def read_chain(
    state: str | None, responses: Mapping[str, Any], *, links: Links, now: datetime
) -> Chain:
    """Read this server's token from requestState. A state without a token is the tool's own."""
    answers = {name: answer for name, answer in responses.items() if name.startswith(KEY)}
    responses = {name: other for name, other in responses.items() if name not in answers}
    without_run = Chain(answers=answers, responses=responses, foreign=state)
    if state is None or not state.startswith(MARK):
        return without_run
    token, _, foreign = state.removeprefix(MARK).partition(":")
    try:
        claims = links.read(token, purpose=Purpose.RUN, now=now)
    except InvalidToken:
        return without_run
    rest = [*claims.rest.split(";"), *[""] * 6]
    rounds, key, began = rest[0], rest[4], rest[5]
    shown, dismissed, accounts, replayed = [
        text.split(",") if text else [] for text in (*rest[1:4], rest[6])
    ]
    began_again_at = _EPOCH + int(began, 16) * _MILLISECOND if began else None
    shown_before = _read_shown(shown)
    known_rounds = tuple(replayed)
    is_replay = began_again_at is not None and now - began_again_at < REPLAYED_WITHIN
    if is_replay and answers and not known_rounds:
        known_rounds = (as_round(shown_before),)
    return replace(
        without_run,
        foreign=foreign or None,
        run_id=claims.id,
        rounds=int(rounds),
        shown=shown_before,
        dismissed=frozenset(dismissed),
        accounts=dict(each.split(":", 1) for each in accounts),
        run_key=key or None,
        began_again_at=began_again_at,
        replayed=known_rounds,
    )


def as_round(indexes: Iterable[int]) -> str:
    """Return one round of questions in its stored form."""
    return "+".join(map(str, sorted(indexes)))


def in_hex(at: datetime | None) -> str:
    """Return a time in the format of the token."""
    return "" if at is None else f"{(at - _EPOCH) // _MILLISECOND:x}"


async def settled_round(
    call: Call, parts: Sequence[Prompt], *, done: Sequence[str], client: AskedClient
) -> list[Prompt]:
    """Return the next settled round that a replaying engine has to get before `parts`.

    The list is empty if no round is left, or if the client does not replay. `done` are the rounds
    of this chain so far.
    """
    asked, first = call.run.value.asked, min(part.index for part in parts)
    rounds = asked[first].after
    if not rounds and not call.run.is_continued:
        rounds = await _given_up_rounds(call, first, client)
    again: list[Prompt] = []
    for index in map(int, rounds[len(done)].split("+")) if len(rounds) > len(done) else ():
        settled = await call.elicitations.get(asked[index].elicitation_id)
        if settled is None:
            return []
        link = partial(call.links.of, settled, now=call.clock())
        shown = PresentedQuestion(elicitation=settled, link=link, index=index, is_again=True)
        again.append(Prompt(shown=shown))
    return again


async def _given_up_rounds(call: Call, first: int, client: AskedClient) -> tuple[str, ...]:
    """Return the rounds before the question `first` that the client never answered.

    Their questions were settled in another way, for example on the page.
    """
    rounds: dict[datetime, list[int]] = {}
    for index in range(first):
        id = call.run.value.asked[index].elicitation_id
        settled = await call.elicitations.get(id) if client.is_unanswered(id) else None
        if settled is not None and settled.status.is_final:
            at = client.first_sent_at(settled, is_again=True, now=call.clock())
            rounds.setdefault(at, []).append(index)
    return tuple(as_round(rounds[at]) for at in sorted(rounds))


def merged_responses(stored: str | None, responses: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the client's answers to the tool's own requests, including earlier ones."""
    return {**(json.loads(stored) if stored else {}), **responses} or None


def _read_shown(listed: Sequence[str]) -> dict[int, Out]:
    shown, at = dict[int, Out](), None
    for each in listed:
        if each.startswith(_AT):
            at = _EPOCH + int(each[1:], 16) * _MILLISECOND
        elif each[-1] in _MODES:  # older entries have no mode: their questions are asked again
            shown[int(each[:-1])] = Out(each[-1], at)
    return shown


def write_shown(shown: Mapping[int, Out]) -> list[str]:
    """Return `shown` in the token's format, grouped by time because most were sent together."""
    written = [f"{n}{out.mode}" for n, out in sorted(shown.items()) if out.at is None]
    for at in sorted({out.at for out in shown.values() if out.at is not None}):
        written.append(f"{_AT}{in_hex(at)}")
        written += [f"{n}{out.mode}" for n, out in sorted(shown.items()) if out.at == at]
    return written
