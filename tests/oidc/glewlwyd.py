"""`python -m tests.oidc.glewlwyd`: connect an account and sign in at Glewlwyd, with each client.

Glewlwyd is an OpenID provider in Debian (package glewlwyd). Its login page is an application in
JavaScript, so the person of this script signs in and consents through the API that the page uses.
The exit status is 1 if a client failed.
"""

import asyncio
import logging
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

import httpx
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tests.oidc.env import ASSISTANT, PEOPLE, Guest, OpenIdProvider
from tests.oidc.settings import Setting, check_account, check_sign_in
from tests.support.serving import free_port

TABLES: Final = Path("/usr/share/dbconfig-common/data/glewlwyd/install/sqlite3")
MODULES: Final = "/usr/lib/glewlwyd"
SCOPES: Final = ("openid", "email", "offline_access", "tools", "more")
PASSWORD: Final = "a password of {name}"
CONNECTS_AT_MOST: Final = 6
BASIC: Final = "client_secret_basic"
# Glewlwyd refuses `openid` without a nonce, and MCP clients send no nonce: no `openid` here.
_POST: Final = Setting(me="/userinfo", person=(None, "alice@acme.example"), scope="tools")
SETTINGS: Final[Mapping[str, Setting]] = {
    # Glewlwyd does not decode the client id and secret of HTTP Basic.
    "client_secret_basic": replace(
        _POST,
        declared={"client_auth": "basic_raw"},
        variables={"ELICIT_ISSUER_CLIENT_AUTH": "basic_raw"},
    ),
    "client_secret_post": replace(
        _POST,
        client={"token_endpoint_auth_method": "client_secret_post"},
        declared={"client_auth": "post"},
        variables={"ELICIT_ISSUER_CLIENT_AUTH": "post"},
    ),
    "public client": replace(
        _POST,
        client={"token_endpoint_auth_method": "none", "client_secret": None},
        declared={"client_auth": "none"},
        variables={"ELICIT_ISSUER_CLIENT_AUTH": "none"},
        secret="",
        revokes=False,  # its revocation endpoint refuses public clients
    ),
}


class Glewlwyd(OpenIdProvider):
    """Glewlwyd with an empty store. `configure` replaces the process and the store."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._program: subprocess.Popen[bytes] | None = None
        self._port = free_port()
        self._url = f"http://127.0.0.1:{self._port}"
        self._key = rsa.generate_private_key(65537, 2048)
        self.issuer = f"{self._url}/api/oidc"

    def configure(self, **wanted: Any) -> None:
        """Restart with these `clients`. The assistant can get tokens for these `resources`."""
        self._stop()
        store = Path(self._folder.name, "store.db")
        store.unlink(missing_ok=True)
        with sqlite3.connect(store) as database:
            database.executescript(TABLES.read_text("utf-8"))
        database.close()
        settings = Path(self._folder.name, "settings")
        settings.write_text(self._settings(store), "utf-8")
        self._program = subprocess.Popen(["glewlwyd", f"--config-file={settings}"])
        starting = httpx.HTTPTransport(retries=CONNECTS_AT_MOST)  # each pause is longer
        with httpx.Client(base_url=f"{self._url}/api", transport=starting) as admin:
            self._fill(admin, wanted.get("clients", ()), wanted.get("resources", {}))

    def guest(self, name: str, *, browser: httpx.AsyncClient) -> Guest:
        return GlewlwydGuest(name, at=self, browser=browser)

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        self._stop()
        self._folder.cleanup()

    def _stop(self) -> None:
        if self._program is not None:
            self._program.terminate()
            self._program.wait()

    def _settings(self, store: Path) -> str:
        texts = {
            "external_url": self._url,
            "bind_address": "127.0.0.1",
            "login_url": "login.html",
            "api_prefix": "api",
            "log_mode": "file",
            "log_level": "ERROR",
            "log_file": store.with_name("log"),
            "cookie_same_site": "empty",
            "session_key": "GLEWLWYD2_SESSION_ID",
            "admin_session_authentication": "cookie",
            "profile_session_authentication": "cookie",
            "admin_scope": "g_admin",
            "profile_scope": "g_profile",
            "user_module_path": f"{MODULES}/user",
            "client_module_path": f"{MODULES}/client",
            "user_auth_scheme_module_path": f"{MODULES}/scheme",
            "plugin_module_path": f"{MODULES}/plugin",
            "secure_connection_key_file": store.with_name("none"),
            "secure_connection_pem_file": store.with_name("none"),
            "hash_algorithm": "SHA512",
        }
        lines = [f'{name}="{value}"' for name, value in texts.items()]
        lines += [f"port={self._port}", "login_api_enabled=true", "use_secure_connection=false"]
        lines += [f'database = {{ type = "sqlite3" path = "{store}" }};', ""]
        return "\n".join(lines)

    def _fill(
        self, admin: httpx.Client, clients: Iterable[Mapping[str, Any]], resources: Iterable[str]
    ) -> None:
        _sent(admin, "/auth/", {"username": "admin", "password": "password"})
        _sent(
            admin,
            "/mod/plugin/",
            {
                "module": "oidc",
                "name": "oidc",
                "display_name": "OpenID Connect",
                "parameters": self._parameters(),
            },
        )
        for name in SCOPES[1:]:  # `openid` comes with the plugin
            _sent(admin, "/scope/", {"name": name, "display_name": name})
        for name, person in PEOPLE.items():
            _sent(
                admin,
                "/user/?source=database",
                {
                    "username": name,
                    "name": person["name"],
                    "email": person["email"],
                    "password": PASSWORD.format(name=name),
                    "scope": [*SCOPES, "g_profile"],
                    "enabled": True,
                },
            )
        for client in clients:
            method = client.get("token_endpoint_auth_method", BASIC)
            _sent(
                admin,
                "/client/?source=database",
                {
                    "client_id": client["client_id"],
                    "client_secret": client.get("client_secret", ""),
                    "confidential": method != "none",
                    "redirect_uri": list(client["redirect_uris"]),
                    "authorization_type": ["code", "refresh_token"],
                    # Its revocation endpoint accepts HTTP Basic only.
                    "token_endpoint_auth_method": [method, *({BASIC} - {method})],
                    "resource": list(resources) if client["client_id"] == ASSISTANT else [],
                    "scope": [],
                    "enabled": True,
                },
            )

    def _parameters(self) -> dict[str, Any]:
        """Return the configuration of the OpenID Connect plugin."""
        private = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        public = self._key.public_key().public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        )
        return {
            "iss": self.issuer,
            "jwt-type": "rsa",
            "jwt-key-size": "256",
            "key": private.decode(),
            "cert": public.decode(),
            "jwks-show": True,
            "access-token-duration": 300,
            "refresh-token-duration": 86400,
            "refresh-token-rolling": True,
            "refresh-token-one-use": "always",
            "code-duration": 60,
            "allow-non-oidc": True,
            "auth-type-code-enabled": True,
            "auth-type-refresh-enabled": True,
            "scope": [],
            "pkce-allowed": True,
            "introspection-revocation-allowed": True,
            "introspection-revocation-auth-scope": [],
            "introspection-revocation-allow-target-client": True,
            "subject-type": "public",
            "email-claim": "mandatory",
            "name-claim": "mandatory",
            "resource-allowed": True,
            "resource-scope": {},
            "resource-client-property": "resource",
            "resource-scope-and-client-property": False,
            "oauth-as-iss-id": True,
            "oauth-par-allowed": True,
            "oauth-par-required": False,
            "oauth-par-duration": 60,
            "oauth-par-request_uri-prefix": "urn:ietf:params:oauth:request_uri:",
        }


class GlewlwydGuest(Guest):
    """A person who signs in and consents through the API of the login page."""

    async def walk(self, url: str, *, says: str = "yes") -> str:
        assert says == "yes"
        page = await self.browser.get(url)
        login = page.url.join(page.headers["location"])
        assert login.path.endswith("/login.html"), login
        asked = {name: values[0] for name, values in parse_qs(urlsplit(str(login)).query).items()}
        api = f"{self.at.issuer.removesuffix('/oidc')}/auth"
        mine = {"username": self.name, "password": PASSWORD.format(name=self.name)}
        entered = await self.browser.post(f"{api}/", json=mine)
        assert entered.status_code == 200, entered.text
        granted = await self.browser.put(
            f"{api}/grant/{asked['client_id']}/", json={"scope": asked["scope"]}
        )
        assert granted.status_code == 200, granted.text
        back = await self.browser.get(f"{asked['callback_url']}&g_continue")
        return str(back.headers["location"])


def _sent(admin: httpx.Client, path: str, body: Mapping[str, Any]) -> None:
    reply = admin.post(path, json=body)
    assert reply.status_code == 200, (path, reply.text)


async def tried() -> int:
    """Print the result of each client, and return the number of those that failed."""
    failed = 0
    with Glewlwyd() as provider:
        for name, setting in SETTINGS.items():
            for works in (check_account, check_sign_in):
                try:
                    await works(provider, setting)
                    result = "works"
                except Exception as error:  # noqa: BLE001 - a line of the report
                    failed += 1
                    result = f"fails: {error!r}"
                print(f"{name}, {works.__name__}: {result}", flush=True)  # noqa: T201 - its output is its report
    return failed


def main() -> int:
    logging.disable()  # hide the log of the libraries in this process
    return 1 if asyncio.run(tried()) else 0


if __name__ == "__main__":
    sys.exit(main())
