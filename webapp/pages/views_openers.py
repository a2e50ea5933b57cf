"""The views of the pages about who opens a link, each with its template.

Leave out every field that the template does not show: a value that is not here cannot leak.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from flows.elicitation.traits import PageName
from webapp.pages.views import Live, ToolName, View

# Pages that are shown only to the person that they belong to.
PersonsPage = Literal["connections", "payments", "inbox", "activity", "operator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherIssuer:
    """Another issuer where people can sign in: `name` is sent, and `site` is its host name."""

    name: str
    label: str
    site: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInButton:
    """A button that signs in at `issuer`, a host name, and returns to `back`.

    With `switch`, the person signs in as somebody else. `others` are further issuers to choose.
    """

    action: str
    back: str
    csrf: str
    issuer: str
    switch: bool = False
    others: tuple[OtherIssuer, ...] = ()

    @property
    def sites(self) -> tuple[str, ...]:
        """The host names where the buttons lead."""
        return tuple(dict.fromkeys((self.issuer, *(one.site for one in self.others))))


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeButton:
    """A button that requests the code that the person types into the chat."""

    action: str
    csrf: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeOpener(View):
    """The page of a question whose details stay hidden until the viewer is identified.

    The viewer can sign in, or request a code. If neither is possible, `why` says what to do.
    `sign_in_at` is the URL of the sign-in page of the application that asks the question.
    """

    template: ClassVar[str] = "before_opener.html"
    kind: PageName
    why: str
    sign_in: SignInButton | None = None
    code: CodeButton | None = None
    sign_in_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePage(Live):
    """The page of the code to type into the chat, like BCDF-GHJK. `words` warn about the code."""

    template: ClassVar[str] = "code.html"
    kind: PageName
    user_code: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeoneElse(View):
    """The page for a viewer who may not use this link.

    `other` says why: the link belongs to another person, or was first opened in another browser.
    `signed_in_as` is the viewer's name. `sign_in` is set if another person could sign in, and
    `sign_in_at` is the URL of the sign-in page of the application that asks the question.
    """

    template: ClassVar[str] = "someone_else.html"
    other: Literal["person", "browser"]
    signed_in_as: str | None = None
    sign_in: SignInButton | None = None
    sign_in_at: str | None = None


SignInFault = Literal["refused", "trouble", "not set up", "unnamed", "mixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInFailed(View):
    """The page of a failed sign-in.

    `why` is one of these reasons, in the order of `SignInFault`: the issuer or the person declined,
    the issuer did not respond, this server's settings for it are wrong, the issuer did not name the
    person as this server needs, or the response belongs to no sign-in of this browser.
    """

    template: ClassVar[str] = "sign_in_failed.html"
    issuer: str
    why: SignInFault
    error_id: str | None
    sign_in: SignInButton | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(View):
    """The page for an anonymous visitor. If `sign_in` is None, `why` says what to do instead.

    `by_code` is set if people prove that a link is theirs with a code in the chat. Such a code does
    not sign the person in.
    """

    template: ClassVar[str] = "closed.html"
    of: PersonsPage
    why: str
    sign_in: SignInButton | None = None
    by_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedOut(View):
    """The page after signing out here. A session at `issuer`, if any, continues.

    If `end_url` is set, a form that is posted there with `end_fields` ends that session as well.
    """

    template: ClassVar[str] = "signed_out.html"
    issuer: str | None
    end_url: str | None = None
    end_fields: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(View):
    """The page that asks the person who ran `elicit pair` to pair this browser."""

    template: ClassVar[str] = "pair.html"
    action: str
    csrf: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired(View):
    """The page of a browser that is now paired."""

    template: ClassVar[str] = "paired.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairUsed(View):
    """The page of a one-time address that was used or is too old. `command` prints a new one."""

    template: ClassVar[str] = "pair_used.html"
    command: str = "elicit pair"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """The part of a list that a page shows: entries `first` to `last` of `total`.

    `shows` are the filters, each with its address, and `show` is the chosen one.
    """

    first: int = 0
    last: int = 0
    total: int = 0
    newer: str | None = None
    older: str | None = None
    show: str = "all"
    shows: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPage(View):
    """The fields of a page that lists what belongs to the viewer.

    `viewer` is the viewer's name. `sign_out_csrf` is set if the viewer can sign out. `sign_in` is
    set if the viewer can sign in: the viewer has no sign-in session, or has to sign in again.
    `paging` leads to the other pages of a long list.
    """

    viewer: str
    sign_out_csrf: str | None
    now: datetime
    sign_in: SignInButton | None = None
    paging: Paging = Paging()


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondLook(View):
    """The page that asks again before a change that cannot be undone. `action` makes the change.

    `what` is the name of the account, the price, or the tool, which may have a `tool_title`. `at`
    is the account's provider, `stopping` are the tools that may use the account, and `about` is
    what was paid for or approved. `back` leads to the page from which the person came.
    """

    template: ClassVar[str] = "second_look.html"
    act: Literal["disconnect", "refund", "revoke"]
    what: str
    action: str
    csrf: str
    back: str
    at: str | None = None
    stopping: tuple[ToolName, ...] = ()
    tool_title: str | None = None
    about: str | None = None
