"""`python -m tests.oidc.private_network`: an issuer in a private network with its own CA.

The issuer has a private address and a certificate that only the operator trusts. People sign in
there, callers send its access tokens, and an account is connected there. A provider at the same
address that is named only by a tool's argument is refused. The script creates a network namespace,
so it needs root and `ip`. The exit status is 1 if a check failed.
"""

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from mcp.server.mcpserver import MCPServer

from flows import elicit
from flows.providers import openid
from tests.oidc.env import (
    OUR_ID,
    OUR_SECRET,
    Guest,
    OpenIdProvider,
    bearer_of,
    install,
    registration,
    sign_in_for,
)
from tests.outside.by_hand import ByHand, texts_in
from tests.support.cli import serving
from tests.support.mcp_server import MODERN, Page, Person
from tests.support.serving import bound

NAME = "elicit-test"
HERE, THERE = "10.213.7.1", "10.213.7.2"
mcp = MCPServer("shop")


@mcp.tool()
async def visit() -> str:
    await elicit.url("Only for the eyes of alice", "https://shop.example/terms")
    return "done"


@mcp.tool()
async def connect() -> str:
    return f"connected {(await elicit.oauth('acme', scopes=['profile'])).label}"


@mcp.tool()
async def wander(issuer: str) -> str:
    """Connect to a provider at this address, which the operator has not configured."""
    return f"connected {(await elicit.oauth(openid('mine', issuer), scopes=['profile'])).label}"


@contextmanager
def network() -> Iterator[None]:
    def ip(*words: str) -> None:
        subprocess.run(("ip", *words), check=True)

    ip("netns", "add", NAME)
    try:
        ip("link", "add", "elicit0", "type", "veth", "peer", "name", "elicit1", "netns", NAME)
        ip("addr", "add", f"{HERE}/30", "dev", "elicit0")
        ip("link", "set", "elicit0", "up")
        inside = ("netns", "exec", NAME, "ip")
        ip(*inside, "addr", "add", f"{THERE}/30", "dev", "elicit1")
        ip(*inside, "link", "set", "elicit1", "up")
        yield
    finally:
        ip("netns", "del", NAME)


def authority(folder: Path) -> tuple[Path, Path]:
    """Return the CA's certificate, and the issuer's certificate with its key, both valid today."""
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Our own authority")])
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, THERE)])

    def signed(subject: x509.Name, of: Any, more: x509.ExtensionType) -> bytes:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(root_name)
            .public_key(of.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(more, critical=False)
        )
        made = builder.sign(root_key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM)

    root, both = folder / "root.pem", folder / "issuer.pem"
    root.write_bytes(signed(root_name, root_key, x509.BasicConstraints(ca=True, path_length=None)))
    named = x509.SubjectAlternativeName([x509.IPAddress(ip_address(THERE))])
    both.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed(name, key, named)
    )
    return root, both


async def tried(provider: OpenIdProvider, root: Path, home: Path) -> dict[str, bool]:
    """Return each check and whether it passed."""
    with bound("127.0.0.1") as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    account = registration(f"{url}/callback/acme", client_id="accounts")
    variables = sign_in_for(provider, url)
    provider.change(clients=[*provider.wanted["clients"], account])
    (home / "elicit.toml").write_text(
        f'[providers.acme]\nlabel = "Acme"\nissuer = "{provider.issuer}"\n'
    )
    extra = {
        **variables,
        "SSL_CERT_FILE": str(root),
        "ELICIT_CONFIG": str(home / "elicit.toml"),
        "ELICIT_TRUSTED_HOSTS": provider.issuer.removeprefix("https://"),
        **{f"ELICIT_{name}_CLIENT_ID": "accounts" for name in ("ACME", "MINE")},
        **{f"ELICIT_{name}_CLIENT_SECRET": OUR_SECRET for name in ("ACME", "MINE")},
    }
    assert variables["ELICIT_ISSUER_CLIENT_ID"] == OUR_ID
    trust = ssl.create_default_context(cafile=str(root))
    async with (
        serving("tests.oidc.private_network:mcp", home=home, port=port, extra=extra),
        httpx.AsyncClient(verify=trust, timeout=300) as there,
        httpx.AsyncClient(timeout=300) as here,
        httpx.AsyncClient(timeout=300) as bare,
    ):
        alice, person = Guest("alice", at=provider, browser=there), Person(here)
        got = await bearer_of(alice, f"{url}/mcp")
        client = await ByHand(here, f"{url}/mcp", MODERN).connect()
        found = {
            "without a token nobody is let in": (await bare.post(f"{url}/mcp")).status_code == 401
        }
        client.headers["authorization"] = f"Bearer {got['access_token']}"
        link = _link(await client.call("visit"))
        page = await person.visit(link)
        begun = await here.post(page.leading("/signin"), data={"csrf": page.csrf})
        await person.visit(await alice.walk(begun.headers["location"]))
        found["signed in, the link is theirs"] = (
            "the eyes of alice" in (await person.visit(link)).text
        )
        link = _link(await client.call("connect"))
        back = await person.visit(await alice.walk(await person.go_on(link)))
        while back.location is not None:
            back = await person.visit(back.location)
        found["an account is connected"] = texts_in(await client.call("connect"))[0].startswith(
            "connected alice"
        )
        wander = {"issuer": provider.issuer}
        link = _link(await client.call("wander", **wander))
        refused: Page = await person.press(link)
        found["an address that a model names is not gone to"] = refused.status == 502
        return found


def _link(result: Any) -> str:
    words = " ".join(texts_in(result)).split()
    return next(word.strip("<>.,") for word in words if "/e/" in word)


def main() -> int:
    with network(), TemporaryDirectory() as folder:
        home = Path(folder)
        root, both = authority(home)
        os.environ |= {"PROVIDER_HOST": THERE, "PROVIDER_TLS": str(both)}
        with OpenIdProvider("ip", "netns", "exec", NAME, install()) as provider:
            found = asyncio.run(tried(provider, root, home))
    for what, is_so in found.items():
        print("right" if is_so else "WRONG", what)  # noqa: T201 -- what it is for
    return 0 if all(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
