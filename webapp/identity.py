"""Identity: who asks, who opens, and whether they are the same person.

What could go wrong: a forwarded link. Whoever opens a link must be whoever asked, and that is
decided here, before any detail is shown and before the redirect.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flows.elicitation import Elicitation
from flows.errors import NotAllowed
from webapp.locality import Locality
from webapp.owners import Owners

LOCAL_ISSUER = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the served server's own authentication says of a caller."""

    issuer: str
    subject: str | None
    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks. `refusal` says why nobody could safely answer, None if somebody can."""

    owner: str | None
    client: str
    refusal: str | None = None

    def must_be_answerable(self) -> str:
        """The owner. Raises NotAllowed."""
        if self.refusal is not None or self.owner is None:
            raise NotAllowed(self.refusal or "It is not known who asks.")
        return self.owner


class Identity:
    def __init__(self, *, owners: Owners, locality: Locality, uid: int) -> None:
        self._owners = owners
        self._locality = locality
        self.local_owner = owners.tag(issuer=LOCAL_ISSUER, subject=f"uid:{uid}")

    def caller(
        self, scope: Mapping[str, Any] | None, *, subject: Subject | None, client: str
    ) -> Caller:
        """Who a call is from; `scope` is None where it came over stdio or from this process."""
        if subject is not None:
            return self._known(subject)
        if scope is None:
            return Caller(owner=self.local_owner, client=client)
        why_not = self._locality.why_not(scope)
        if why_not is None:
            return Caller(owner=self.local_owner, client=client)
        return Caller(
            owner=None,
            client=client,
            refusal=(
                "Nobody can be asked, because it is not known who this caller is: it is not a "
                f"program of this server's own user on this machine ({why_not})."
            ),
        )

    def why_may_not_open(self, elicitation: Elicitation, scope: Mapping[str, Any]) -> str | None:
        """One sentence for the page, None if this browser belongs to whoever asked."""
        why_not = self._locality.why_not(scope)
        if why_not is None and elicitation.owner == self.local_owner:
            return None
        return (
            "It works only for the person who asked, in a browser on the computer "
            "where the server runs."
        )

    def _known(self, subject: Subject) -> Caller:
        if subject.subject is None:
            return Caller(
                owner=None,
                client=subject.client_id,
                refusal=(
                    "Nobody can be asked: the caller's access token names no person (no subject)."
                ),
            )
        return Caller(
            owner=self._owners.tag(issuer=subject.issuer, subject=subject.subject),
            client=subject.client_id,
            refusal=(
                "Nobody can be asked: the caller is known by an access token, but people cannot "
                "sign in on this server's pages, so a link could not be told from a forwarded "
                "one. Sign-in is set by ELICIT_ISSUER, which this version does not have yet."
            ),
        )
