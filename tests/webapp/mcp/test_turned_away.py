"""Refused requests are logged with the question's id, and without any of its content."""

import logging
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support import by_code
from tests.support import signed_in_people as who_is_who
from tests.support.callers import sent_out
from tests.support.issuer import sign_in
from tests.support.mcp_server import MODERN
from tests.support.oauth_env import oauth_env, parameter

_OF_EVERY_RECORD = {*vars(logging.makeLogRecord({})), "message", "asctime"}


def refusals(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the level, event and fields of each log record, in order."""
    return [
        (
            record.levelname,
            record.getMessage(),
            {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD},
        )
        for record in caplog.records
        if record.getMessage().endswith(".refused")
    ]


def is_silent_about(caplog: pytest.LogCaptureFixture, *secrets: str) -> bool:
    received = [str(vars(record)) for record in caplog.records if record.name.startswith("webapp")]
    return all(secrets) and not any(secret in text for secret in secrets for text in received)


async def test_link_opened_by_another_person_is_logged(caplog):
    caplog.set_level(logging.DEBUG)
    async with who_is_who.signed_in_env() as here:
        alice, mallory = await here.env.person(), await here.env.person()
        async with here.env.caller(MODERN, headers=here.bearer("alice")) as caller:
            caller.begin("visit")
            link = await caller.link()
            # A visitor who has not signed in yet is not logged as refused.
            assert (await sign_in(alice, await alice.visit(link), "alice")).status == 200
            first = await mallory.visit(link)
            assert refusals(caplog) == []
            assert (await sign_in(mallory, first, "mallory")).status == 403
            id = here.env.id_of(link)
            reported = ("WARNING", "opener.refused", {"id": id, "way": "other person"})
            assert refusals(caplog) == [reported]
            cookies = [*mallory.browser.cookies.values(), *alice.browser.cookies.values()]
            assert is_silent_about(caplog, link, link.rpartition("/")[2], *cookies)
            assert is_silent_about(caplog, "mallory", "alice", who_is_who.HER_WORDS)


async def test_local_link_of_another_owner_is_logged(caplog):
    caplog.set_level(logging.DEBUG)
    async with oauth_env() as here:
        stranger = here.service.elicitations.owners.tag(issuer="https://i.example", subject="eve")
        link = await here.ask("repo", owner=stranger).link()
        assert (await (await here.person()).visit(link)).status == 403
        id = (await here.row(link)).id
        assert refusals(caplog) == [("WARNING", "opener.refused", {"id": id, "way": "here only"})]
        assert is_silent_about(caplog, link.rpartition("/")[2])


async def test_link_by_code_in_another_browser_is_logged(caplog):
    caplog.set_level(logging.DEBUG)
    async with by_code.nameless(MODERN) as (env, caller, typed):
        caller.begin("visit")
        link = await caller.link()
        person, other = await env.person(), await env.person()
        user_code = await by_code.code_for(person, link)
        typed.put_nowait(user_code)
        await by_code.confirmed(env, link)
        assert (await person.visit(link)).status == 200
        assert refusals(caplog) == []
        assert (await other.visit(link)).status == 403
        id = env.id_of(link)
        reported = ("WARNING", "opener.refused", {"id": id, "way": "other browser"})
        assert refusals(caplog) == [reported]
        cookies = [*person.browser.cookies.values(), *other.browser.cookies.values()]
        assert is_silent_about(caplog, link.rpartition("/")[2], user_code, *cookies)


async def test_callback_in_another_browser_is_logged(caplog):
    caplog.set_level(logging.DEBUG)
    async with oauth_env() as here:
        asked, person, link, callback = await sent_out(here)
        thief = await here.person()
        await thief.visit(link)
        assert refusals(caplog) == []
        assert (await thief.visit(callback)).status == 403
        id = (await here.row(link)).id
        # The thief's browser runs as the same user of this machine, but it is not the browser that
        # was sent to the provider.
        assert refusals(caplog) == [("WARNING", "callback.refused", {"id": id, "way": "open"})]
        await person.visit(callback)
        await asked.account()
        assert len(refusals(caplog)) == 1
        query = [parameter(callback, name) for name in ("code", "state")]
        cookies = [*thief.browser.cookies.values(), *person.browser.cookies.values()]
        assert is_silent_about(
            caplog, link.rpartition("/")[2], urlsplit(callback).query, *query, *cookies
        )
