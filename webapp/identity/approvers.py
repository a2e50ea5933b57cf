"""Approvers: people who decide for others, under a name that the operator chose.

Risks: a person approves their own request, or is no longer an approver. The person is therefore
compared with the settings and with the asker at the moment of the decision. The comparison uses
only facts that were verified for this request: a subject of the issuer, a claim that the issuer
signed, a user of the application, or this machine's own user. An old sign-in does not count, so the
person has to sign in again. E-mail addresses are never compared.

If an asker and an approver are identified by different methods, they may be the same person, and
the server cannot know. An approver must therefore be identified by the same method as the asker,
and by the same issuer if there are several, unless the operator lets askers decide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal, Protocol

from flows.elicitation.states import Elicitation
from flows.elicitation.voting import Voting
from flows.errors import NotConfigured
from flows.kinds.form import asker_of, voting_of
from flows.oauth.access_token import claim_mark
from flows.shown import counted
from webapp.deadline import Clock
from webapp.elicitations.question_kind import missing_table
from webapp.identity.identity import Caller, Identity, Viewer
from webapp.records.owners import Owners

SIGN_IN_COUNTS_FOR: Final = timedelta(hours=1)
OWN_USER: Final = "the user of the machine that the server runs on"


class KnownBy(StrEnum):
    """The method by which a person is identified."""

    ISSUER = "issuer"
    APPLICATION = "application"
    MACHINE = "machine"
    CODE = "code"  # by a user code, because no browser can be identified as the caller's


class ListsPeople(Protocol):
    """A table of `elicit.toml` that lists people."""

    @property
    def subjects(self) -> frozenset[str]: ...
    @property
    def issuers(self) -> frozenset[str]: ...
    @property
    def users(self) -> frozenset[str]: ...
    @property
    def is_local(self) -> bool: ...


def owners_of_people(
    table: ListsPeople,
    *,
    owners: Owners,
    identity: Identity,
    issuers: frozenset[str],
    application: str,
) -> Mapping[str, str]:
    """Return the names of the people in the table, by their owner tags.

    Subjects belong to the issuers that the table names, or else to `issuers`.
    """
    found = {owners.tag_of_user(user, application=application): user for user in table.users}
    for issuer in table.issuers or issuers:
        tags = {owners.tag(issuer=issuer, subject=each): each for each in table.subjects}
        found |= {tag: f"{issuer}#{subject}" for tag, subject in tags.items()}
    return {**found, identity.local_owner: OWN_USER} if table.is_local else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Approver:
    """A name and the people who decide under it.

    Subjects and claims belong to `issuers`, or to the issuer in ELICIT_ISSUER if `issuers` is
    empty. `users` are users of the application.

    `needs` is how many people have to approve. `comment` says whether these people can or must
    write a comment. After `escalate_after`, the people of the approver `escalate_to` can decide,
    too.
    """

    name: str
    subjects: frozenset[str] = frozenset()
    claims: Mapping[str, tuple[str, ...]] | None = None
    issuers: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    is_local: bool = False
    needs: int = 1
    comment: Literal["none", "optional", "required"] = "none"
    lets_delegate: bool = False
    escalate_after: timedelta | None = None
    escalate_to: str | None = None

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The claims as pairs of a name and one value."""
        claims = self.claims or {}
        return frozenset((name, value) for name, values in claims.items() for value in values)

    def is_among(self, known_by: KnownBy) -> bool:
        """Return True if a person who is identified by this method can decide under the name."""
        match known_by:
            case KnownBy.ISSUER:
                return bool(self.subjects or self.pairs)
            case KnownBy.APPLICATION:
                return bool(self.users)
            case KnownBy.MACHINE:
                return self.is_local
            case KnownBy.CODE:
                return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRules:
    """The operator's choices: approvers, whether askers may decide, and the age of a sign-in."""

    approvers: tuple[Approver, ...] = ()
    lets_askers_decide: bool = False
    sign_in_counts_for: timedelta = SIGN_IN_COUNTS_FOR

    @property
    def claims(self) -> frozenset[tuple[str, str]]:
        """The claims to check when a person signs in."""
        return frozenset[tuple[str, str]]().union(*(one.pairs for one in self.approvers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """A person as verified for this request. `since` is the time of the sign-in, if there was one.

    `name` is the name in the operator's settings, `label` the name that people read.
    """

    owner: str
    known_by: KnownBy
    name: str
    label: str
    issuer: str | None = None
    claims: frozenset[str] = frozenset()
    since: datetime | None = None


class Approvers:
    """The approvers of one server."""

    def __init__(
        self,
        *,
        rules: ApprovalRules,
        owners: Owners,
        identity: Identity,
        issuers: frozenset[str],
        application: str,
        clock: Clock,
        config: str = "elicit.toml",
    ) -> None:
        """`config` is the name of the file with the approvers, for errors."""
        self._config = config
        self._rules = rules
        self._issuers = issuers
        self._application = application
        self._tags = owners
        self._identity = identity
        self._clock = clock
        self._by_name = {one.name: one for one in rules.approvers}

        self._owners = {
            one.name: owners_of_people(
                one, owners=owners, identity=identity, issuers=issuers, application=application
            )
            for one in rules.approvers
        }

    def require_approver(self, name: str) -> None:
        """Raise NotConfigured if no approver has this name."""
        if name not in self._by_name:
            known = self._by_name
            raise missing_table("approvers", name, known=known, config=self._config)

    def must_decide_for(self, name: str, caller: Caller) -> None:
        """Raise NotConfigured if no approver could decide about this caller's question."""
        self.require_approver(name)
        if self._rules.lets_askers_decide:
            return
        known_by = self._known_by(
            caller.owner or "", is_for_user=caller.is_user, is_by_code=caller.by_code
        )
        if known_by is KnownBy.MACHINE:  # the machine's only user is the asker
            raise NotConfigured(
                "ELICIT_APPROVERS_ASKER",
                how="To approve your own requests on this machine, set ELICIT_APPROVERS_ASKER=may.",
            )
        tables = self._tables(name)
        for table in tables:
            issuers = table.issuers or self._issuers
            is_elsewhere = known_by is KnownBy.ISSUER and caller.issuer not in (None, *issuers)
            if is_elsewhere or not table.is_among(known_by):
                method = caller.issuer if is_elsewhere else known_by.value
                raise NotConfigured(
                    f"people in [approvers.{table.name}] of elicit.toml who are identified by the "
                    f"same method as the asker ({method})",
                    how="Approver and asker must be identified by the same method, or they may be "
                    f"one person. Add such people to [approvers.{table.name}] in {self._config}, "
                    "or set ELICIT_APPROVERS_ASKER=may.",
                )
        people = self._people(tables, known_by, caller.issuer)
        if people is not None and len(people.keys() - {caller.owner}) < tables[0].needs:
            raise NotConfigured(
                f"{counted(tables[0].needs, 'person', 'people')} in [approvers.{name}] of "
                "elicit.toml in addition to the asker",
                how=f"{name} needs {counted(tables[0].needs, 'approval')}, and nobody approves "
                f"their own request. Add people to [approvers.{name}] in {self._config}, or set a "
                "lower `needs`.",
            )

    def voting(self, name: str, *, now: datetime) -> Voting:
        """Return the voting rules for a question that goes to this approver at the time `now`."""
        table = self._by_name[name]
        return Voting(
            approver=name,
            needs=table.needs,
            comment=table.comment,
            lets_delegate=table.lets_delegate,
            escalates_to=table.escalate_to,
            escalates_at=None if table.escalate_after is None else now + table.escalate_after,
        )

    def colleagues(self, person: Deciding, asked: Elicitation) -> Mapping[str, str]:
        """Return the people to whom the person can hand the question: owner tags and names.

        These people are listed in the same table, are identified by the same method, and may
        decide. The result is empty if too few people could approve the question without the person.
        """
        voting = voting_of(asked)
        if voting is None or not voting.lets_delegate or not self.has_enough_without(person, asked):
            return {}
        found = dict[str, str]()
        for name in voting.names(self._clock()):
            if name in self.names_of(person):
                listed = self._listed(self._by_name[name], person.known_by, person.issuer)
                found |= {tag: label for tag, label in listed.items() if tag != person.owner}
        return {
            tag: label
            for tag, label in found.items()
            if self._rules.lets_askers_decide or tag != asked.owner
            if not voting.has_approved(tag) and not voting.has_delegated(tag)
        }

    def has_enough_without(self, person: Deciding, asked: Elicitation) -> bool:
        """Return True if enough people can approve the question after the person delegated it."""
        voting = voting_of(asked)
        tables = [] if voting is None else self._tables(voting.approver)
        people = self._people(tables, person.known_by, person.issuer)
        if voting is None or people is None:
            return True
        own = set[str]() if self._rules.lets_askers_decide else {asked.owner}
        gone = {vote.owner for vote in voting.votes} | own | {person.owner}
        return len(people.keys() - gone) + len(voting.approvals) >= voting.needs

    def _tables(self, name: str) -> list[Approver]:
        """Return the approver, and the approver to whom its questions are escalated."""
        names = (name, self._by_name[name].escalate_to) if name in self._by_name else ()
        return [self._by_name[each] for each in names if each in self._by_name]

    def _people(
        self, tables: Sequence[Approver], known_by: KnownBy, issuer: str | None
    ) -> Mapping[str, str] | None:
        """Return the listed people, or None if a claim admits people who are not listed."""
        if known_by is KnownBy.ISSUER and any(table.pairs for table in tables):
            return None
        return {
            tag: label
            for table in tables
            for tag, label in self._listed(table, known_by, issuer).items()
        }

    def _listed(self, table: Approver, known_by: KnownBy, issuer: str | None) -> Mapping[str, str]:
        """Return the tags and names of the listed people whom the same method identifies.

        `issuer` selects the people of this issuer. If it is None, the people of all issuers of the
        table are returned.
        """
        match known_by:
            case KnownBy.MACHINE:
                return {self._identity.local_owner: OWN_USER} if table.is_local else {}
            case KnownBy.APPLICATION:
                of = self._application
                return {self._tags.tag_of_user(user, application=of): user for user in table.users}
            case KnownBy.ISSUER:
                issuers = [
                    each for each in table.issuers or self._issuers if issuer in (None, each)
                ]
                return {
                    self._tags.tag(issuer=each, subject=subject): subject
                    for each in issuers
                    for subject in table.subjects
                }
            case KnownBy.CODE:
                return {}

    def deciding(self, viewer: Viewer) -> Deciding | None:
        """Return the person at a browser, or None if the browser has to be paired first."""
        session = viewer.session
        if viewer.is_user:
            known_by = KnownBy.APPLICATION
        elif viewer.owner == self._identity.local_owner:
            known_by = KnownBy.MACHINE
            if session is None and self._identity.pairs_for_yes(viewer.owner):
                return None
        else:
            known_by = KnownBy.ISSUER
        if known_by is not KnownBy.ISSUER:
            session = None
        return Deciding(
            owner=viewer.owner,
            known_by=known_by,
            name=self._name_of(viewer, known_by),
            label=viewer.label,
            issuer=None if session is None else session.issuer,
            claims=frozenset(() if session is None else session.claims),
            since=None if session is None else session.signed_in_at,
        )

    def deciding_by_token(self, caller: Caller) -> Deciding | None:
        """Return the person of an access token, or None if our issuer did not identify them."""
        if caller.owner is None or caller.by_code or caller.refusal is not None:
            return None
        return Deciding(
            owner=caller.owner,
            known_by=KnownBy.ISSUER,
            name=f"{caller.issuer}#{caller.name}",
            label=caller.name or "",
            issuer=caller.issuer,
            claims=frozenset(caller.claims),
            since=caller.signed_in_at,
        )

    def is_too_long_ago(self, person: Deciding) -> bool:
        """Return True if the sign-in is too old to prove that the person is still an approver."""
        counts_for = self._rules.sign_in_counts_for
        return person.since is not None and self._clock() >= person.since + counts_for

    def names_of(self, person: Deciding) -> Sequence[str]:
        """Return the names under which the person decides, by the current settings."""
        if self.is_too_long_ago(person):
            return []
        return [name for name in self._by_name if self._decides_as(person, name)]

    def is_asker(self, person: Deciding, asked: Elicitation) -> bool:
        """Return True if the person may be the asker, who must not decide."""
        if self._rules.lets_askers_decide:
            return False
        known_by = self._known_by(
            asked.owner, is_for_user=asked.is_for_user, is_by_code=asked.is_by_code
        )
        if person.owner == asked.owner or person.known_by is not known_by:
            return True
        if known_by is not KnownBy.ISSUER or not self._identity.has_several_issuers:
            return False
        # A person may have accounts at two issuers, so a person of another issuer may be the asker.
        issuer, asker = person.issuer or "", asker_of(asked) or ""
        return self._tags.tag(issuer=issuer, subject=asker) != asked.owner

    def _decides_as(self, person: Deciding, name: str) -> bool:
        if person.owner in self._owners[name]:
            return True
        if person.issuer not in (self._by_name[name].issuers or self._issuers):
            return False
        marks = {claim_mark(*pair) for pair in self._by_name[name].pairs}
        return person.known_by is KnownBy.ISSUER and not marks.isdisjoint(person.claims)

    def _name_of(self, viewer: Viewer, known_by: KnownBy) -> str:
        if viewer.session is not None and known_by is KnownBy.ISSUER:
            return f"{viewer.session.issuer}#{viewer.session.subject}"
        named = (by_owner.get(viewer.owner) for by_owner in self._owners.values())
        return next((name for name in named if name is not None), viewer.label)

    def _known_by(self, owner: str, *, is_for_user: bool, is_by_code: bool) -> KnownBy:
        if is_for_user:  # without `who=`, no browser is ever identified as a user's
            return KnownBy.CODE if is_by_code else KnownBy.APPLICATION
        if owner == self._identity.local_owner:
            return KnownBy.MACHINE
        return KnownBy.CODE if is_by_code else KnownBy.ISSUER
