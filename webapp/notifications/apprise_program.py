"""A program that calls Apprise: one check or one message per run, as JSON on stdin and stdout.

This file is run by its path, in a process of its own, and imports nothing of this project. Apprise
blocks, writes addresses to its log and has no time limit, so the server never imports it.
"""

import io
import json
import logging
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import apprise
from apprise.manager_plugins import NotificationManager

# Words in Apprise's log, each with the reason that the server may show. Other words of that log may
# be secrets.
_REASONS = (
    ("refused", "the connection was refused"),
    ("timed out", "no answer in time"),
    ("name or service not known", "its host name is unknown"),
    ("name resolution", "its host name is unknown"),
    ("certificate", "its certificate is invalid"),
    ("authentication", "it refused the user name or password"),
    ("unreachable", "its network is unreachable"),
)
_APPRISE: Any = apprise.Apprise  # Apprise's annotations are incomplete
_STATUS = re.compile(r"error=([1-5][0-9]{2})\b")


def check(addresses: Sequence[str]) -> list[dict[str, Any]]:
    """Return for each address whether Apprise can use it, and whether it contains a secret."""
    plugins: Any = NotificationManager
    known, found = sorted(plugins().schemas()), list[dict[str, Any]]()
    for address in addresses:
        scheme, plugin = address.partition("://")[0].lower(), _plugin(address)
        if plugin is None or _has_no_recipient(scheme, plugin):
            near = get_close_matches(scheme, known, n=1)
            found.append({"fault": "format" if scheme in known else "scheme", "near": near})
        elif not plugin.enabled:
            found.append({"fault": "library"})
        else:
            has_secret = plugin.url(privacy=True) != plugin.url(privacy=False)
            found.append({"fault": None, "has_secret": has_secret})
    return found


def send(address: str, *, title: str, body: str) -> str | None:
    """Send one message. Return the reason if Apprise could not send it, or None."""
    log = io.StringIO()
    logger = logging.getLogger("apprise")
    logger.addHandler(logging.StreamHandler(log))
    logger.setLevel(logging.DEBUG)
    plugin = _plugin(address)
    if plugin is None:
        return "Apprise does not know the address"
    messenger = _APPRISE(plugin, asset=plugin.asset)
    if messenger.notify(body=body, title=title, body_format=apprise.NotifyFormat.TEXT):
        return None
    output = log.getvalue().lower()
    if (status := _STATUS.search(output)) is not None:
        return f"HTTP {status[1]}"
    reasons = (reason for word, reason in _REASONS if word in output)
    return next(reasons, "it did not accept the message")


def _plugin(address: str) -> Any:
    asset = apprise.AppriseAsset(
        app_id="elicit-url",
        app_desc="elicit-url",
        app_url="",
        image_url_mask="",
        image_url_logo="",
        async_mode=False,
        allow_templates=False,
        storage_mode=apprise.PersistentStoreMode.MEMORY,
    )
    return _APPRISE.instantiate(address, asset=asset)


def _has_no_recipient(scheme: str, plugin: Any) -> bool:
    """Return True if Apprise left out every recipient of a mail, because it could not read them."""
    return scheme in ("mailto", "mailtos") and not plugin.targets


def main() -> None:
    """Read one request from stdin, and write the answer to stdout.

    Other output of this process is discarded, so it does not reach the server.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    asked = json.load(sys.stdin)
    result = send(**asked["send"]) if "send" in asked else check(asked["check"])
    json.dump({"result": result}, answers)
    answers.close()


if __name__ == "__main__":
    main()
