"""What the pages about who looks are told: one value for each, and its template.

A field that a template does not show is a field too many: what is not here cannot leak into a page.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from flows.elicitation.traits import PageName
from webapp.pages.views import Live, View

# What is shown only to the person that it belongs to.
Theirs = Literal["connections", "payments", "inbox"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInButton:
    """Leads to `issuer`, a host name, and then to `back`; with `switch` as another person."""

    action: str
    back: str
    csrf: str
    issuer: str
    switch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeButton:
    """Asks for the letters that go from the page to the chat."""

    action: str
    csrf: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeOpener(View):
    """A request whose details stay hidden.

    The way on is to sign in, or else a code; without either, `why` says in a sentence what it is.
    `sign_in_at` is where the application that asks has people sign in.
    """

    template: ClassVar[str] = "before_opener.html"
    kind: PageName
    why: str
    sign_in: SignInButton | None = None
    code: CodeButton | None = None
    sign_in_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePage(Live):
    """The letters that the person types into the chat, as BCDF-GHJK, and `words` of warning."""

    template: ClassVar[str] = "code.html"
    kind: PageName
    letters: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeoneElse(View):
    """Another person than the one who asked, or another browser than the one that began.

    `signed_in_as` is what the person is called; `sign_in` is there where another could sign in, and
    `sign_in_at` is where the application that asks has people do so.
    """

    template: ClassVar[str] = "someone_else.html"
    other: Literal["person", "browser"]
    signed_in_as: str | None = None
    sign_in: SignInButton | None = None
    sign_in_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInFailed(View):
    """Nobody was signed in.

    Because the issuer or the person said no, or it did not answer, or because what came back
    belongs to no sign-in of this browser.
    """

    template: ClassVar[str] = "sign_in_failed.html"
    issuer: str
    why: Literal["refused", "trouble", "mixed"]
    error_id: str | None
    sign_in: SignInButton | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(View):
    """It is not known who looks: the way on is to sign in, or else `why` says in words what it is.

    `by_code` says that links are bound by letters here, which sign nobody in.
    """

    template: ClassVar[str] = "closed.html"
    of: Theirs
    why: str
    sign_in: SignInButton | None = None
    by_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedOut(View):
    """Signed out here; the session at `issuer`, if there is one, goes on."""

    template: ClassVar[str] = "signed_out.html"
    issuer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(View):
    """Whether this browser is that of the person who runs the server."""

    template: ClassVar[str] = "pair.html"
    action: str
    csrf: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired(View):
    """From now on it is."""

    template: ClassVar[str] = "paired.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairUsed(View):
    """An address for pairing that was used before, or is too old."""

    template: ClassVar[str] = "pair_used.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPage(View):
    """All that the person who looks has of something.

    `viewer` is what they are called; `sign_out_csrf` is there where they can sign out, `sign_in`
    where they could be somebody else than whoever uses this computer.
    """

    viewer: str
    sign_out_csrf: str | None
    now: datetime
    sign_in: SignInButton | None = None
