"""A chain: what a leg of 2026-07-28 brings of the legs before it, as our token has it.

An engine that replays its steps makes the call again from its first request whenever it goes on,
without requestState, and gives the answers that it has in the order in which it was asked. Such an
engine is recognised by what no person can do: it answers a question that was put again within
moments. From then on the token counts the rounds, so that the next replay gets the same ones.

Our part of requestState is sealed, so no client can change it; whatever else is in it is the
tool's own.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from flows.crypto.tokens import Purpose
from flows.errors import InvalidToken
from webapp.calls.clients import AskedClient
from webapp.calls.presenter import Leg, PresentedQuestion, Prompt
from webapp.elicitations.links import Links

KEY: Final = "elicit-url-"
MARK: Final = "elicit-url:"
BY_LINK, BY_FORM = _MODES = "uf"  # how a question was shown
# An answer to a question that was put again, and that comes within this time, was there before.
REPLAYED_WITHIN: Final = timedelta(seconds=5)
_AT = "@"  # when those that follow were put out
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Out(NamedTuple):
    """How a question was put to the client, and when first, as long as it has no answer."""

    mode: str
    at: datetime | None = None


class Chain:
    """What a leg brings: run, rounds used, and the client's answers.

    Of the run's questions it says which are out, by their index, in which mode and since when: what
    an answer means is decided by what was shown, whatever this leg declares. It says which the
    client dismissed in earlier legs, by their names: what was said of one is said of no other at
    its place. The accounts are those that the body got, by the digests of its questions; `run_key`
    is of the call that got them, whose run may stand nowhere yet. `began_again_at` is when this
    chain began, if its call had been made before; `replayed` are the rounds of an engine that
    replays, see `AskedStep.after`.
    """

    __slots__ = (
        "accounts",
        "answers",
        "began_again_at",
        "dismissed",
        "foreign",
        "replayed",
        "responses",
        "rounds",
        "run_id",
        "run_key",
        "shown",
    )

    def __init__(
        self,
        *,
        responses: Mapping[str, Any],
        foreign: str | None,
        run_id: str | None = None,
        rounds: int = 0,
        shown: Mapping[int, Out] | None = None,
        dismissed: frozenset[str] = frozenset(),
        accounts: Mapping[str, str] | None = None,
        run_key: str | None = None,
        began_again_at: datetime | None = None,
        replayed: tuple[str, ...] = (),
    ) -> None:
        self.answers = {k: v for k, v in responses.items() if k.startswith(KEY)}
        self.responses = {k: v for k, v in responses.items() if k not in self.answers}
        self.run_id = run_id
        self.rounds = rounds
        self.shown = shown or {}
        self.dismissed = dismissed
        self.accounts = accounts or {}
        self.run_key = run_key
        self.began_again_at = began_again_at
        self.replayed = replayed
        self.foreign = foreign  # the tool's own requestState


def read_chain(
    state: str | None, responses: Mapping[str, Any], *, links: Links, now: datetime
) -> Chain:
    """Take our token off requestState; a state without one is the tool's own, whatever it says."""
    if state is None or not state.startswith(MARK):
        return Chain(responses=responses, foreign=state)
    token, _, foreign = state.removeprefix(MARK).partition(":")
    try:
        claims = links.read(token, purpose=Purpose.RUN, now=now)
    except InvalidToken:
        return Chain(responses=responses, foreign=state)
    rounds, shown, dismissed, accounts, key, began, replayed = [
        *claims.rest.split(";"),
        *[""] * 6,
    ][:7]
    began_again_at = _EPOCH + int(began, 16) * _MILLISECOND if began else None
    shown_before = _read_shown(_listed(shown))
    known_rounds = tuple(_listed(replayed))
    has_answers = any(name.startswith(KEY) for name in responses)
    is_replay = began_again_at is not None and now - began_again_at < REPLAYED_WITHIN
    if is_replay and has_answers and not known_rounds:
        known_rounds = (as_round(shown_before),)
    return Chain(
        responses=responses,
        foreign=foreign or None,
        run_id=claims.id,
        rounds=int(rounds),
        shown=shown_before,
        dismissed=frozenset(_listed(dismissed)),
        accounts=dict(each.split(":", 1) for each in _listed(accounts)),
        run_key=key or None,
        began_again_at=began_again_at,
        replayed=known_rounds,
    )


def as_round(indexes: Iterable[int]) -> str:
    """Return one round of questions as it is stored."""
    return "+".join(map(str, sorted(indexes)))


def in_hex(at: datetime | None) -> str:
    """Return a moment as the token has it."""
    return "" if at is None else f"{(at - _EPOCH) // _MILLISECOND:x}"


async def settled_round(
    call: Leg, parts: Sequence[Prompt], *, done: Sequence[str], client: AskedClient
) -> list[Prompt]:
    """Return the next round that an engine which replays the call has to be asked before `parts`.

    All its questions are settled. It is empty if there is none left, or for any other client.
    `done` are the rounds of this chain so far.
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
        link = partial(call.links.of, settled, now=call.now)
        shown = PresentedQuestion(elicitation=settled, link=link, index=index, is_again=True)
        again.append(Prompt(shown=shown))
    return again


async def _given_up_rounds(call: Leg, first: int, client: AskedClient) -> tuple[str, ...]:
    """Return the rounds before a question that the client never answered, settled elsewhere."""
    rounds: dict[datetime, list[int]] = {}
    for index in range(first):
        id = call.run.value.asked[index].elicitation_id
        settled = await call.elicitations.get(id) if client.is_out(id) else None
        if settled is not None and settled.status.is_final:
            at = client.put_at(settled, is_again=True, now=call.now)
            rounds.setdefault(at, []).append(index)
    return tuple(as_round(rounds[at]) for at in sorted(rounds))


def with_kept(kept: str | None, responses: Mapping[str, Any]) -> dict[str, Any] | None:
    """The client's answers to the tool's own requests, those of earlier legs too."""
    return {**(json.loads(kept) if kept else {}), **responses} or None


def _read_shown(listed: Sequence[str]) -> dict[int, Out]:
    shown, at = dict[int, Out](), None
    for each in listed:
        if each.startswith(_AT):
            at = _EPOCH + int(each[1:], 16) * _MILLISECOND
        elif each[-1] in _MODES:  # or it was sealed by a version without modes: it is shown again
            shown[int(each[:-1])] = Out(each[-1], at)
    return shown


def write_shown(shown: Mapping[int, Out]) -> list[str]:
    """By the moments, as most were put out together."""
    written = [f"{n}{out.mode}" for n, out in sorted(shown.items()) if out.at is None]
    for at in sorted({out.at for out in shown.values() if out.at is not None}):
        written.append(f"{_AT}{in_hex(at)}")
        written += [f"{n}{out.mode}" for n, out in sorted(shown.items()) if out.at == at]
    return written


def _listed(text: str) -> list[str]:
    return text.split(",") if text else []
