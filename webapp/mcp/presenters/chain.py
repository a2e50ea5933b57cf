"""A chain: what a leg of 2026-07-28 brings of the legs before it, as our token has it.

Our part of requestState is sealed, so no client can change it; whatever else is in it is the
tool's own.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from flows.crypto.tokens import Purpose
from flows.errors import InvalidToken
from webapp.elicitations.links import Links

KEY: Final = "elicit-url-"
MARK: Final = "elicit-url:"
BY_LINK, BY_FORM = _MODES = "uf"  # how a question was shown
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
    is of the call that got them, whose run may stand nowhere yet.
    """

    __slots__ = (
        "accounts",
        "answers",
        "dismissed",
        "foreign",
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
    ) -> None:
        self.answers = {k: v for k, v in responses.items() if k.startswith(KEY)}
        self.responses = {k: v for k, v in responses.items() if k not in self.answers}
        self.run_id = run_id
        self.rounds = rounds
        self.shown = shown or {}
        self.dismissed = dismissed
        self.accounts = accounts or {}
        self.run_key = run_key
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
    rounds, shown, dismissed, accounts, key = [*claims.rest.split(";"), "", "", "", ""][:5]
    return Chain(
        responses=responses,
        foreign=foreign or None,
        run_id=claims.id,
        rounds=int(rounds),
        shown=_read_shown(_listed(shown)),
        dismissed=frozenset(_listed(dismissed)),
        accounts=dict(each.split(":", 1) for each in _listed(accounts)),
        run_key=key or None,
    )


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
        written.append(f"{_AT}{(at - _EPOCH) // _MILLISECOND:x}")
        written += [f"{n}{out.mode}" for n, out in sorted(shown.items()) if out.at == at]
    return written


def _listed(text: str) -> list[str]:
    return text.split(",") if text else []
