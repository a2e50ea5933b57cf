"""A certified OpenID provider in its own process, people who sign in there, and access tokens.

The provider is `oidc-provider`, run by node (server.mjs) on its own port. It uses real time, so a
manual clock in these tests starts at the real time.
"""

import json
import secrets
import select
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeAlias, cast
from urllib.parse import urlencode

import httpx
from authlib.oauth2.rfc7636 import create_s256_code_challenge  # type: ignore[import-untyped]

from flows.oauth.provider import Client, PersonProbe, Provider
from flows.providers import openid
from tests.support.clock import Clock
from tests.support.mcp_server import new_browser
from tests.support.oauth_env import parameter
from tests.support.pinned import installing
from tests.support.processes import close, error_of, open_process
from tests.support.sandbox import Form
from webapp.connecting import utc_now

HERE = Path(__file__).parent
PACKAGES = HERE / "node_modules"
NO_NODE = "no node and npm on this machine"
NO_PACKAGE = "npm cannot install the OpenID providers on this machine"
PATIENCE_SECONDS = 300.0
STEPS_AT_MOST = 20
OUR_ID = "our id"
OUR_SECRET = "our:secret/%+"  # has characters that HTTP Basic must encode
ASSISTANT = "an assistant"
ASSISTANT_BACK = "http://127.0.0.1:1/callback"  # no test sends a request to this address
PEOPLE = {
    "alice": {"name": "Alice", "preferred_username": "alice", "email": "alice@acme.example"},
    "bob": {"name": "Bob", "preferred_username": "bob", "email": "bob@acme.example"},
}
PLAIN: Mapping[str, Any] = {
    "accounts": PEOPLE,
    "clients": [],
    "resources": {},
    "keys": [{"kid": "one", "alg": "ES256"}],
    "prompts": ["select_account"],
    "seconds": {"access_token": 300, "id_token": 300, "device_code": 300},
}


class Missing(Exception):
    """A program or package that these tests need is missing on this machine."""


class OpenIdProvider:
    """The provider's process. A new configuration replaces the previous one and all state."""

    def __init__(self, *node: str, program: str = "server.mjs") -> None:
        """Start the process. `node` is the path of node, after the command that runs it, if any."""
        self._process = open_process(
            *(*node, str(HERE / program)),
            name="the OpenID provider",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.issuer = ""
        self.wanted: dict[str, Any] = {}

    def configure(self, **wanted: Any) -> None:
        """Restart with this configuration. `PLAIN` has the defaults."""
        self.wanted = {**PLAIN, **wanted}
        cast("IO[bytes]", self._process.stdin).write(json.dumps(self.wanted).encode() + b"\n")
        reply = json.loads(self._line())
        assert "error" not in reply, reply["error"]
        self.issuer = reply["issuer"]

    def change(self, **wanted: Any) -> None:
        """Restart with the last configuration and these changes."""
        self.configure(**{**self.wanted, **wanted})

    def declared(self, name: str = "acme", **changes: Any) -> Provider:
        """Return the provider as a settings file declares it."""
        return replace(openid(name, self.issuer), **changes)

    def client(self, name: str = "acme", **changes: Any) -> Client:
        """Return our client at the provider, as `registration` registers it."""
        provider = self.declared(name, **changes)
        return Client(provider=provider, client_id=OUR_ID, client_secret=OUR_SECRET)

    def guest(self, name: str, *, browser: httpx.AsyncClient) -> "Guest":
        """Return the person with this name and this browser, at this provider."""
        return Guest(name, at=self, browser=browser)

    def __enter__(self) -> Self:
        try:
            self.configure()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the process's input, which ends it."""
        close(self._process)

    def _line(self) -> bytes:
        output = cast("IO[bytes]", self._process.stdout)
        is_there, _, _ = select.select([output], [], [], PATIENCE_SECONDS)
        line = output.readline() if is_there else b""
        if not line:
            raise RuntimeError(f"The provider does not answer: {error_of(self._process)}")
        return line


class OauthServer(OpenIdProvider):
    """A server without OpenID Connect, which publishes no metadata."""

    def declared(self, name: str = "acme", **changes: Any) -> Provider:
        return Provider(
            name=name,
            label=name.title(),
            authorize=f"{self.issuer}/authorize",
            token=f"{self.issuer}/token",
            api=self.issuer,
            person=PersonProbe(url=f"{self.issuer}/me", id="id", label="email"),
            **changes,
        )


class Guest:
    """A person with a browser, which has its own cookie jar, at one provider."""

    def __init__(self, name: str, *, at: OpenIdProvider, browser: httpx.AsyncClient) -> None:
        self.name = name
        self.browser = browser
        self.at = at

    async def walk(self, url: str, *, says: str = "yes") -> str:
        """Sign in and consent if asked. Return the redirect's address without visiting it."""
        end = await self._go(url, says)
        assert isinstance(end, str), end.text
        return end

    async def enter(self, url: str, *, user_code: str = "", says: str = "yes") -> str:
        """Follow the pages to the last one, which stays at the provider, and return its text."""
        end = await self._go(url, says, user_code)
        assert isinstance(end, httpx.Response), end
        return end.text

    async def _go(self, url: str, says: str, user_code: str = "") -> str | httpx.Response:
        mine = {"login": self.name, "decision": says, "user_code": user_code}
        page = await self.browser.get(url)
        for _ in range(STEPS_AT_MOST):
            if page.has_redirect_location:
                url = str(page.url.join(page.headers["location"]))
                if not url.startswith(f"{self.at.issuer}/"):
                    return url
                page = await self.browser.get(url)
                continue
            form = _Form(page.text)
            # After a decline, the provider shows the code form again.
            if not form.action or "interrupted" in page.text:
                return page
            filled = {name: mine.get(name) or was for name, was in form.fields.items()}
            page = await self.browser.post(str(page.url.join(form.action)), data=filled)
        raise AssertionError("it leads nowhere")


# Returns a person with this name and a new browser at a provider; see the fixture `newcomer`.
Newcomer: TypeAlias = Callable[[OpenIdProvider, str], Awaitable[Guest]]


class _Form(Form):
    """A form whose inputs may omit their default attributes."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, [("action", ""), ("type", "text"), ("value", ""), *attrs])


def install() -> str:
    """Install the provider once into a folder outside git, and return the path of node."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise Missing(NO_NODE)
    wanted = json.loads((HERE / "package.json").read_text("utf-8"))["dependencies"]
    with installing("oidc"):
        if _installed() != wanted:
            _install(npm)
    assert _installed() == wanted
    return node


def _install(npm: str) -> None:
    with tempfile.TemporaryDirectory(dir=HERE, prefix="node_modules.") as folder:
        shutil.copy(HERE / "package.json", folder)
        options = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts")
        done = subprocess.run(
            [npm, "install", *options, "--prefix", folder],
            capture_output=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            raise Missing(NO_PACKAGE)
        shutil.rmtree(PACKAGES, ignore_errors=True)
        (Path(folder) / "node_modules").rename(PACKAGES)


def real_time() -> Clock:
    """Return a manual clock that starts at the real time, like the provider's clock."""
    return Clock(utc_now())


def registration(*redirect_uris: str, **changes: Any) -> dict[str, Any]:
    """Return our registration at the provider. A change to None removes a value."""
    made = {
        "client_id": OUR_ID,
        "client_secret": OUR_SECRET,
        "redirect_uris": redirect_uris,
        **changes,
    }
    return {name: value for name, value in made.items() if value is not None}


def sign_in_for(
    acme: OpenIdProvider,
    url: str,
    *,
    client: Mapping[str, Any] | None = None,
    resource: Mapping[str, Any] | None = None,
    **wanted: Any,
) -> dict[str, str]:
    """Configure the provider so that people and their assistants can sign in there for our server.

    `url` is the address of the server. `client` changes the registration of its pages, and
    `resource` the registration of its MCP endpoint. Return the server's environment variables.
    """
    assistant = {
        "client_id": ASSISTANT,
        "redirect_uris": [ASSISTANT_BACK],
        "token_endpoint_auth_method": "none",
    }
    acme.configure(
        **{
            "clients": [registration(f"{url}/signin/callback", **(client or {})), assistant],
            "resources": {
                f"{url}/mcp": {"scope": "tools more", "seconds": 120, **(resource or {})}
            },
            **wanted,
        }
    )
    return {
        "ELICIT_ISSUER": acme.issuer,
        "ELICIT_ISSUER_CLIENT_ID": OUR_ID,
        "ELICIT_ISSUER_CLIENT_SECRET": OUR_SECRET,
    }


async def bearer_of(
    guest: Guest, resource: str | None, *, scope: str = "openid tools"
) -> dict[str, Any]:
    """Return the token reply for this resource, requested as MCP clients do (RFC 8707)."""
    verifier = secrets.token_urlsafe(32)
    async with new_browser() as http:
        found = await http.get(f"{guest.at.issuer}/.well-known/openid-configuration")
        places = found.json()
    named = {} if resource is None else {"resource": resource}
    asked = {
        "response_type": "code",
        "client_id": ASSISTANT,
        "redirect_uri": ASSISTANT_BACK,
        **({"scope": scope} if scope else {}),
        **named,
        "code_challenge": create_s256_code_challenge(verifier),
        "code_challenge_method": "S256",
    }
    back = await guest.walk(f"{places['authorization_endpoint']}?{urlencode(asked)}")
    reply = await guest.browser.post(
        places["token_endpoint"],
        data={
            "grant_type": "authorization_code",
            "client_id": ASSISTANT,
            "redirect_uri": ASSISTANT_BACK,
            "code": parameter(back, "code"),
            "code_verifier": verifier,
            **named,
        },
    )
    assert reply.status_code == 200, reply.text
    got: dict[str, Any] = reply.json()
    return got


def _installed() -> dict[str, str]:
    """Return the installed versions."""
    wanted = json.loads((HERE / "package.json").read_text("utf-8"))["dependencies"]
    files = (PACKAGES / name / "package.json" for name in wanted)
    packages = (json.loads(file.read_text("utf-8")) for file in files if file.is_file())
    return {one["name"]: one["version"] for one in packages}
