"""Teams: people who share accounts, because a claim of their issuer or the operator names them.

Risks: a person of another issuer with the same claim uses a team's account, or a person who has
left still uses it. So a claim counts only together with its issuer, and only if that issuer signed
it into the token of the current request. Claims that a program or a client sends are ignored. On
the pages, an old sign-in does not count.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from flows.oauth.access_token import claim_mark


@dataclass(frozen=True, kw_only=True)
class Team:
    """A table `[teams.NAME]`: the people of the team, and the providers whose accounts they share.

    A person is a member if one of `issuers` names one of these values in one of these `claims`, or
    if the application's user is among `users`.
    """

    name: str
    label: str
    providers: frozenset[str]
    claims: Mapping[str, tuple[str, ...]]
    issuers: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The claims as pairs of a name and one value."""
        claims = self.claims.items()
        return frozenset((name, value) for name, values in claims for value in values)

    @cached_property
    def _marks(self) -> frozenset[str]:
        return frozenset(claim_mark(*pair) for pair in self.pairs)

    def has(self, issuer: str | None, marks: Collection[str]) -> bool:
        """Return True if a person of this issuer whose claims have these `marks` is a member."""
        return issuer in self.issuers and not self._marks.isdisjoint(marks)
