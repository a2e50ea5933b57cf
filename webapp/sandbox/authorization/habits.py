"""Habits of an authorization server: where it differs from the standard, and the faults it shows.

Error names are those that GitHub and Slack document. If they document none for an error of the
standard, the standard's name is used.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from litestar.types import Receive


class SimulatedRefusal(StrEnum):
    """A refusal of the token endpoint, named as in the standard (RFC 6749, 5.2)."""

    INVALID_REQUEST = "invalid_request"
    INVALID_CLIENT = "invalid_client"
    INVALID_GRANT = "invalid_grant"
    INVALID_SCOPE = "invalid_scope"
    UNSUPPORTED_GRANT_TYPE = "unsupported_grant_type"
    # The standard has only invalid_grant for these three errors. Some providers distinguish them.
    SPENT_CODE = "spent_code"
    WRONG_REDIRECT = "wrong_redirect"
    INVALID_REFRESH = "invalid_refresh"


STANDARD_NAMES: Mapping[SimulatedRefusal, str] = {
    **{refusal: refusal.value for refusal in SimulatedRefusal},
    SimulatedRefusal.SPENT_CODE: "invalid_grant",
    SimulatedRefusal.WRONG_REDIRECT: "invalid_grant",
    SimulatedRefusal.INVALID_REFRESH: "invalid_grant",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationHabits:
    """The settings of one provider. Paths are below the sandbox's URL.

    `issuer` None means that replies contain no issuer.
    """

    name: str
    authorize: str
    token: str
    issuer: str | None
    # scopes with a description; other scopes are granted too
    scopes: Mapping[str, str] = field(repr=False)
    is_openid: bool = False
    separator: str = " "  # of the scopes in the token reply
    takes_commas: bool = False  # between the scopes of a request
    needs_types: bool = True  # response_type and grant_type are required
    needs_scope: bool = False
    fails_with_200: bool = False
    says_ok: bool = False  # Slack's {"ok": ...}, with the person's own token nested
    answers_form_encoded: bool = False  # unless JSON is requested
    error_names: Mapping[SimulatedRefusal, str] = field(
        default_factory=lambda: STANDARD_NAMES, repr=False
    )
    token_type: str = "Bearer"  # noqa: S105 - the name of a type
    access_prefix: str = "sandbox_at_"
    refresh_prefix: str = "sandbox_rt_"


OIDC = AuthorizationHabits(
    name="Sandbox Identity",
    authorize="/oidc/authorize",
    token="/oidc/token",  # noqa: S106 - a path
    issuer="/oidc",
    is_openid=True,
    scopes={
        "openid": "Know that it is you",
        "profile": "See your name and picture",
        "email": "See your e-mail address",
        "offline_access": "Stay connected when you are away",
    },
)

GITHUB = AuthorizationHabits(
    name="Sandbox GitHub",
    authorize="/github/login/oauth/authorize",
    token="/github/login/oauth/access_token",  # noqa: S106 - a path
    issuer="/github/login/oauth",
    separator=",",
    takes_commas=True,
    needs_types=False,
    fails_with_200=True,
    answers_form_encoded=True,
    scopes={
        "repo": "Read and change your repositories, private ones too",
        "public_repo": "Read and change your public repositories",
        "read:user": "See your profile",
        "user:email": "See your e-mail addresses",
        "user": "See and change your profile",
        "read:org": "See your organisations",
        "gist": "Write gists",
        "notifications": "Read your notifications",
        "workflow": "Change the workflows of your repositories",
        "delete_repo": "Delete your repositories",
    },
    error_names={
        **STANDARD_NAMES,
        SimulatedRefusal.INVALID_CLIENT: "incorrect_client_credentials",
        SimulatedRefusal.INVALID_GRANT: "bad_verification_code",
        SimulatedRefusal.SPENT_CODE: "bad_verification_code",
        SimulatedRefusal.WRONG_REDIRECT: "redirect_uri_mismatch",
        SimulatedRefusal.INVALID_REFRESH: "bad_refresh_token",
    },
    token_type="bearer",  # noqa: S106 - the name of a type
    access_prefix="gho_sandbox_",
    refresh_prefix="ghr_sandbox_",
)

SLACK = AuthorizationHabits(
    name="Sandbox Slack",
    authorize="/slack/oauth/v2/authorize",
    token="/slack/api/oauth.v2.access",  # noqa: S106 - a path
    issuer=None,
    separator=",",
    takes_commas=True,
    needs_types=False,
    needs_scope=True,
    fails_with_200=True,
    says_ok=True,
    scopes={
        "chat:write": "Send messages",
        "channels:read": "See the channels",
        "channels:history": "Read the messages of channels",
        "users:read": "See the people of the workspace",
        "users:read.email": "See their e-mail addresses",
        "files:read": "See files",
        "search:read": "Search the workspace",
        "identity.basic": "See who you are",
    },
    error_names={
        **STANDARD_NAMES,
        SimulatedRefusal.INVALID_REQUEST: "invalid_arguments",
        SimulatedRefusal.INVALID_CLIENT: "bad_client_secret",
        SimulatedRefusal.INVALID_GRANT: "invalid_code",
        SimulatedRefusal.SPENT_CODE: "code_already_used",
        SimulatedRefusal.WRONG_REDIRECT: "bad_redirect_uri",
        SimulatedRefusal.INVALID_REFRESH: "invalid_refresh_token",
        SimulatedRefusal.UNSUPPORTED_GRANT_TYPE: "invalid_grant_type",
    },
    token_type="bot",  # noqa: S106 - the name of a type
    access_prefix="xoxb-sandbox-",
    refresh_prefix="xoxe-1-sandbox-",
)


class SimulatedFault(StrEnum):
    """A fault, which happens once: the first six in a token reply, the others in a redirect."""

    SERVER_ERROR = "500"
    HTML = "html"
    ERROR_WITH_200 = "200-with-error"
    NO_TOKEN = "no-token"  # noqa: S105 - the name of a fault
    HUGE_TOKEN = "huge-token"  # noqa: S105 - the name of a fault
    SLOW = "slow"
    DROP_ISS = "drop-iss"
    WRONG_ISS = "wrong-iss"


REDIRECT_FAULTS = frozenset({SimulatedFault.DROP_ISS, SimulatedFault.WRONG_ISS})
TOKEN_FAULTS = frozenset(SimulatedFault) - REDIRECT_FAULTS


class Faults:
    """The planned faults and the held replies."""

    def __init__(self) -> None:
        self._planned: deque[SimulatedFault] = deque()
        self._released = asyncio.Event()

    @property
    def planned(self) -> list[SimulatedFault]:
        return list(self._planned)

    def plan(self, fault: SimulatedFault) -> None:
        self._planned.append(fault)
        if fault is SimulatedFault.SLOW:
            self._released.clear()

    def pop(self, kinds: frozenset[SimulatedFault]) -> SimulatedFault | None:
        """Remove and return the next planned fault of these kinds."""
        for fault in self._planned:
            if fault in kinds:
                self._planned.remove(fault)
                return fault
        return None

    def release(self) -> None:
        """Release all held replies."""
        self._released.set()

    async def hold(self, receive: Receive) -> None:
        """Wait until the replies are released or the client has disconnected."""
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(self._released.wait()), group.create_task(_gone(receive))]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()


async def _gone(receive: Receive) -> bool:
    while (await receive())["type"] != "http.disconnect":
        pass
    return True
