"""Aliases: an author's own id for an elicitation, so that trusted code can complete it by that id.

Risks: two people are asked under the same id, and a completion meant for one person completes the
other person's question. So an id belongs to the asker (an API program, or a tool or block of one
server) and to the person who was asked. A completion that does not name both the asker and the
person finds a question only if exactly one tool asked exactly one person under the id. Ended
questions count too: a late or repeated completion must not complete another question. Questions of
API programs are found only by the name of the program.

Each question under an id has one row with the id `name::home:owner:tool`. `home` is a tag of the
API program, or of the server whose tools and blocks ask. Earlier versions used `name:owner`.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from flows.elicitation.states import Asked, Elicitation
from flows.elicitation.tool_call import client_of, program_of
from flows.errors import InvalidQuestion, OwnerNeeded
from flows.question import is_elicitation_id
from webapp.elicitations.service import Elicitations
from webapp.records.ids import made_at
from webapp.records.owners import SERVICE
from webapp.records.rows import ROWS_AT_ONCE
from webapp.records.values import Alias

_SEPARATOR = ":"  # occurs in no author's id and in no tag
_BEHIND = ";"  # sorts directly after the separator
_OWN, _PROGRAM = "s", "p"  # the first character of a home: of a server, or of an API program
# Our ids begin with their creation time. If the beginning of another text of the same length is
# decoded as a time, the result is nearly always far in the future.
_LAST_YEAR = 2200
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskingParty:
    """The asker that chose an id: an API program or a tool.

    If `program` and `tool` are None, the asker is any tool or block. If `server` is None, the asker
    may belong to any server of the store.
    """

    server: str | None = None
    program: str | None = None
    tool: str | None = None

    def has_asked(self, asked: Asked) -> bool:
        if self.server not in (None, asked.server):
            return False
        if self.program is not None:
            return asked.tool == client_of(self.program)
        return program_of(asked.tool) is None and self.tool in (None, asked.tool)

    def excludes(self, asked: Asked) -> bool:
        """Return True if a program or tool is named here, and another program or tool asked.

        Programs or tools of two servers are different askers, even if they have the same name.
        """
        return (self.program, self.tool) != (None, None) and not self.has_asked(asked)


def must_be_alias(name: str) -> None:
    """Check that an author's own id of a question is not in the format of our ids.

    If `name` were another question's real id, trusted code would complete that question.

    Raises:
        InvalidQuestion: `name` is in the format of our ids.
    """
    created_at = made_at(name)
    if created_at is not None and created_at.year <= _LAST_YEAR:
        raise InvalidQuestion(
            f"elicitation_id {name!r} has the format of the ids that this server makes. Use an id "
            "of your own, such as the number of the order."
        )


async def give_alias(elicitations: Elicitations, name: str, elicitation: Elicitation) -> None:
    """Make `name` an id of this elicitation, for its asker and its owner.

    Raises InvalidQuestion if the same asker and owner have another open question with this id.
    """
    id = _id(elicitations, name, elicitation)

    async def given() -> Sequence[Alias]:
        found = await elicitations.read(Alias, owner=SERVICE, id=id)
        if found is not None and found.elicitation_id != elicitation.id:
            other = await elicitations.get(found.elicitation_id)
            if (
                other is not None
                and not other.status.is_final
                and other.dedupe_key != elicitation.dedupe_key
            ):
                raise InvalidQuestion(
                    f"elicitation_id {name!r} belongs to a question that is still open."
                )
        fresh = Alias(
            id=id,
            owner=SERVICE,
            elicitation_id=elicitation.id,
            erase_at=elicitation.erase_at,
            version=0 if found is None else found.version,
        )
        return [] if fresh == found else [fresh]

    await elicitations.write_rebuilt(given)


async def aliased(
    elicitations: Elicitations, name: str, *, owner: str | None, by: AskingParty
) -> Elicitation | None:
    """Return the latest elicitation to which `by` gave this id, or None.

    With `owner`, consider only this owner's questions. Raises OwnerNeeded if several people, or
    several tools, have a question with this id.
    """
    found: dict[tuple[str, str, str], Elicitation] = {}
    if not is_elicitation_id(name):
        return None
    async for alias in _rows(elicitations, name, owner=owner, by=by):
        current = await elicitations.get(alias.elicitation_id)
        if current is None or not by.has_asked(current.request):
            continue
        asker = (current.owner, current.request.server, current.request.tool)
        known = found.get(asker)
        if known is None or known.created_at < current.created_at:
            found[asker] = current
        if len(found) > 1:
            _log.warning("completion.owner_needed", extra={"elicitation_id": name})
            owners = {each.owner for each in found.values()}
            tools = {each.request.tool for each in found.values()}
            raise OwnerNeeded(name, tools=sorted(tools) if len(owners) == 1 else ())
    return next(iter(found.values()), None)


async def _rows(
    elicitations: Elicitations, name: str, *, owner: str | None, by: AskingParty
) -> AsyncIterator[Alias]:
    whose, start = owner or "", f"{name}{_SEPARATOR}"
    if owner is not None:
        old = await elicitations.read(Alias, owner=SERVICE, id=start + owner)
        if old is not None:
            yield old
    else:  # sorted by id, rows of earlier versions come before and after the current rows
        async for alias in _beginning(elicitations, start, without=_SEPARATOR):
            yield alias
    async for home in _homes(elicitations, name, by):
        async for alias in _beginning(elicitations, _SEPARATOR.join((name, "", home, whose))):
            yield alias


async def _homes(elicitations: Elicitations, name: str, by: AskingParty) -> AsyncIterator[str]:
    """Yield the homes (tags of servers or programs) whose rows may have this id."""
    if by.server is not None:
        yield _home(elicitations, server=by.server, program=by.program)
        return
    start = f"{name}{_SEPARATOR}{_SEPARATOR}"
    after = start + (_OWN if by.program is None else _PROGRAM)
    wanted = after
    while page := await elicitations.store.list("alias", after=after, limit=1):
        if not page[0].id.startswith(wanted):
            return
        home = page[0].id.removeprefix(start).partition(_SEPARATOR)[0]
        yield home
        after = start + home + _BEHIND


async def _beginning(
    elicitations: Elicitations, start: str, *, without: str | None = None
) -> AsyncIterator[Alias]:
    """Yield the rows whose id starts with `start`, but not with `start` followed by `without`."""
    after = start
    while True:
        page = await elicitations.store.list("alias", after=after, limit=ROWS_AT_ONCE)
        for record in page:
            if not record.id.startswith(start):
                return
            if without is not None and record.id.startswith(start + without):
                after = start + _BEHIND
                break
            yield await elicitations.rows.open(record, Alias)
            after = record.id
        else:
            if len(page) < ROWS_AT_ONCE:
                return


def _home(elicitations: Elicitations, *, server: str, program: str | None) -> str:
    tag = elicitations.owners.pepper.tag
    if program is None:
        return _OWN + tag("names of a server", server)
    return _PROGRAM + tag("names of a program", server, program)


def _id(elicitations: Elicitations, name: str, elicitation: Elicitation) -> str:
    asked = elicitation.request
    home = _home(elicitations, server=asked.server, program=program_of(asked.tool))
    tool = elicitations.owners.pepper.tag("a name's tool", asked.tool)
    return _SEPARATOR.join((name, "", home, elicitation.owner, tool))
