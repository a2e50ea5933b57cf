"""Aliases: an author's own id for an elicitation, so that trusted code can complete it by that."""

from flows.elicitation import Elicitation
from flows.errors import InvalidQuestion
from webapp.elicitations import Elicitations
from webapp.owners import SERVICE
from webapp.rows import Alias


async def give_alias(elicitations: Elicitations, name: str, elicitation: Elicitation) -> None:
    """Let `name` stand for it.

    Raises InvalidQuestion if the name stands for another question that is still open.
    """

    async def given() -> list[Alias]:
        found = await elicitations.alias(name)
        if found is not None and found.elicitation_id != elicitation.id:
            other = await elicitations.get(found.elicitation_id)
            if other is not None and not other.status.is_final and other.join != elicitation.join:
                raise InvalidQuestion(
                    f"elicitation_id {name!r} belongs to a question that is still open."
                )
        fresh = Alias(
            id=name,
            owner=SERVICE,
            elicitation_id=elicitation.id,
            erase_at=elicitation.erase_at,
            version=0 if found is None else found.version,
        )
        return [] if fresh == found else [fresh]

    await elicitations.write_afresh(given)
