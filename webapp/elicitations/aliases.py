"""Aliases: an author's own id for an elicitation, so that trusted code can complete it by that.

What could go wrong: one person's order completes the question of another who uses its id too. So an
alias is of whoever was asked, and a completion that does not say whose is meant finds one only
where no other person's was kept under that id, open or over: a late or repeated completion of the
one must not finish the other's.
"""

import logging

from flows.elicitation.states import Elicitation
from flows.errors import InvalidQuestion, OwnerNeeded
from webapp.elicitations.service import Elicitations
from webapp.records.owners import SERVICE
from webapp.records.rows import ROWS_AT_ONCE
from webapp.records.values import Alias

_SEPARATOR = ":"  # neither an id of an author's nor an owner has it
_log = logging.getLogger(__name__)


async def give_alias(elicitations: Elicitations, name: str, elicitation: Elicitation) -> None:
    """Let `name` stand for it, among what its owner is asked.

    Raises InvalidQuestion if it stands for another question of theirs that is still open.
    """

    async def given() -> list[Alias]:
        id = _id(name, elicitation.owner)
        found = await elicitations.read(Alias, owner=SERVICE, id=id)
        if found is not None and found.elicitation_id != elicitation.id:
            other = await elicitations.get(found.elicitation_id)
            if other is not None and not other.status.is_final and other.join != elicitation.join:
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

    await elicitations.write_afresh(given)


async def aliased(
    elicitations: Elicitations, name: str, *, owner: str | None
) -> Elicitation | None:
    """The elicitation that `name` stands for, of this owner or of the only one there is.

    Raises OwnerNeeded where several have one.
    """
    if owner is not None:
        alias = await elicitations.read(Alias, owner=SERVICE, id=_id(name, owner))
        return None if alias is None else await elicitations.get(alias.elicitation_id)
    found: Elicitation | None = None
    after, start = _id(name, ""), _id(name, "")
    while True:
        page = await elicitations.store.list("alias", after=after, limit=ROWS_AT_ONCE)
        for record in page:
            if not record.id.startswith(start):
                return found
            alias = await elicitations.rows.open(record, Alias)
            current = await elicitations.get(alias.elicitation_id)
            if current is not None and found is not None:
                _log.warning("completion.owner_needed", extra={"elicitation_id": name})
                raise OwnerNeeded(name)
            found = found or current
        if len(page) < ROWS_AT_ONCE:
            return found
        after = page[-1].id


def _id(name: str, owner: str) -> str:
    return f"{name}{_SEPARATOR}{owner}"
