"""The routes of approvals: list and revoke the permissions that a person gave to a tool.

Risks: a program learns what other programs are allowed. So a program sees only its own approvals. A
person, with their own access token alone, sees all approvals they gave. No route grants anything.
"""

from datetime import datetime
from http import HTTPStatus

from litestar import delete, get
from litestar.params import FromPath
from msgspec import Struct

from flows.elicitation.tool_call import client_of
from flows.errors import ElicitError
from webapp.api.access import CurrentRequester, Requester, requires
from webapp.api.asking import application_of, owner_for
from webapp.api.representations import Whose
from webapp.identity.api_keys import KeyScope
from webapp.records.values import Approval

_ASKERS = requires(KeyScope.ASK, or_person=True)


class NoSuchApproval(ElicitError):
    """The approval is unknown, has ended, or belongs to someone else."""

    name = "NO_SUCH_APPROVAL"
    http_status = 404

    def __init__(self) -> None:
        super().__init__(
            "No approval with this id exists, it belongs to another person, or it has expired: the "
            "list of approvals has those in force."
        )


class ApprovalData(Struct, frozen=True, kw_only=True):
    """A permission for a tool to run without asking again. Null `arguments` means any arguments.

    `client` is the client whose calls are allowed; null means every client of the person.
    """

    id: str
    tool: str
    arguments: str | None
    client: str | None
    given_at: datetime
    expires_at: datetime


class ApprovalPage(Struct, frozen=True, kw_only=True):
    """The approvals in force, newest first."""

    approvals: list[ApprovalData]


class Revoked(Struct, frozen=True, kw_only=True):
    """The number of approvals that were in force and have been revoked."""

    revoked: int


@get("/api/approvals", guards=[_ASKERS])
async def list_approvals(requester: CurrentRequester, user: Whose = None) -> ApprovalPage:
    """List the approvals of the program, or of a person, newest first.

    A person who sends their access token instead of a key sees all approvals they gave.
    """
    found = await _of(requester, owner=owner_for(requester, user))
    return ApprovalPage(approvals=[*map(_to_approval, found)])


@delete("/api/approvals", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def clear_approvals(requester: CurrentRequester, user: Whose = None) -> Revoked:
    """Revoke all listed approvals. The next calls ask again."""
    owner = owner_for(requester, user)
    ended = [
        await requester.service.kinds.gates.approvals.revoke(one.id, owner=owner, by=requester.name)
        for one in await _of(requester, owner=owner)
    ]
    return Revoked(revoked=sum(ended))


@delete("/api/approvals/{approval_id:str}", guards=[_ASKERS], status_code=HTTPStatus.OK)
async def revoke_approval(
    approval_id: FromPath[str], requester: CurrentRequester, user: Whose = None
) -> Revoked:
    """Revoke an approval. The next call asks again."""
    owner = owner_for(requester, user)
    if approval_id not in {one.id for one in await _of(requester, owner=owner)}:
        raise NoSuchApproval
    approvals = requester.service.kinds.gates.approvals
    ended = await approvals.revoke(approval_id, owner=owner, by=requester.name)
    return Revoked(revoked=int(ended))


async def _of(requester: Requester, *, owner: str) -> list[Approval]:
    """Return the owner's approvals that the requester may see."""
    service = requester.service
    return [
        one
        for one in await service.kinds.gates.approvals.all(owner=owner)
        if one.server == application_of(service)
        and (requester.key is None or one.tool == client_of(requester.key.program))
    ]


def _to_approval(approval: Approval) -> ApprovalData:
    client = None if approval.is_for_all else approval.client
    return ApprovalData(
        id=approval.id,
        tool=approval.tool,
        arguments=None if approval.covers is None else approval.about,
        client=None if client is None else client.id or client.name,
        given_at=approval.given_at,
        expires_at=approval.until,
    )
