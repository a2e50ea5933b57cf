"""A person's own lists: a page reads only the rows that it shows, also with many questions."""

import re
from datetime import timedelta

from msgspec.structs import replace

from flows.elicitation.states import Status
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from tests.support.mcp_server import ServerEnv, new_server, server_env
from tests.support.operating import counting, filled, question
from webapp.records.values import Approval

PAGES = ("/payments", "/connections", "/inbox", "/activity")
SHOWN = 20


async def questions(env: ServerEnv, first: int, number: int) -> None:
    service, owner = env.service, env.service.identity.local_owner
    statuses = (Status.DECLINED, Status.ACCEPTED, Status.EXPIRED)
    for start in range(first, first + number, 300):
        await service.elicitations.rows.write(
            *(
                question(service, owner, number=one, status=statuses[one % 3])
                for one in range(start, min(start + 300, first + number))
            )
        )


async def thirty_of_each(env: ServerEnv) -> None:
    """Store thirty payments, thirty accounts and thirty approvals of the local person."""
    service, now = env.service, env.service.clock()
    owner, rows = service.identity.local_owner, service.elicitations.rows
    await rows.write(*approvals(env, 30))
    await filled(service, 30, owners=1)
    paid, *_ = await service.elicitations.all(Payment)
    account, *_ = await service.elicitations.all(Connection)
    for number in range(30):
        of_owner = {"id": rows.new_id(owner, now=now), "owner": owner, "version": 0}
        await rows.write(
            replace(paid, **of_owner, dedupe_key=f"payment {number}", answers=None),
            replace(account, **of_owner, lookup_key=f"account {number}"),
        )


def approvals(env: ServerEnv, number: int) -> list[Approval]:
    """Return approvals of the local person, the latest first."""
    now, owner = env.service.clock(), env.service.identity.local_owner
    return [
        Approval(
            id=env.service.elicitations.rows.new_id(owner, now=now),
            owner=owner,
            server="my tools",
            tool=f"book{place:03}",
            covers=None,
            about="anything",
            given_at=now - timedelta(seconds=place),
            until=now + timedelta(hours=1),
            erase_at=now + timedelta(days=1),
            is_for_all=True,
        )
        for place in range(number)
    ]


async def test_page_reads_the_same_with_30_and_with_3000_questions() -> None:
    async with server_env(new_server("mcp")) as env:
        await thirty_of_each(env)
        person, counted = await env.person(), counting(env.service)
        work = dict[tuple[str, int], int]()
        for stored, number in ((0, 30), (30, 2_970)):
            await questions(env, stored, number)
            for path in PAGES:
                counted.reads = counted.opened = 0
                page = await person.visit(env.url + path)
                assert page.status == 200, path
                work[path, number] = counted.opened
                # The payments page may also read the question of each payment that it shows.
                assert 0 < counted.reads <= 5 + (SHOWN if path == "/payments" else 0), path
        for path in PAGES:
            assert work[path, 30] == work[path, 2_970] > 0, path
        assert work["/activity", 30] == SHOWN


async def test_activity_has_all_questions_in_order_on_its_pages() -> None:
    async with server_env(new_server("mcp")) as env:
        service, owner = env.service, env.service.identity.local_owner
        for number in (2, 0, 1, *range(3, 25)):
            one = question(service, owner, number=number * 60 * 24)
            request = replace(one.request, message=f"Table {number:02}?")
            await service.elicitations.rows.write(replace(one, request=request))
        person = await env.person()
        pages = [(await person.visit(f"{env.url}/activity?page={page}")).text for page in (1, 2)]
        places = [pages[0].index(f"Table {number:02}?") for number in range(SHOWN)]
        assert places == sorted(places)
        assert all(f"Table {number:02}?" in pages[1] for number in range(SHOWN, 25))


async def test_inbox_shows_300_approvals_on_pages() -> None:
    async with server_env(new_server("mcp")) as env:
        await env.service.elicitations.rows.write(*approvals(env, 300))
        person, seen = await env.person(), list[str]()
        for number in range(1, 16):
            page = await person.visit(f"{env.url}/inbox?page={number}")
            assert page.text.count('/revoke"') == SHOWN, number
            assert len(page.text) < 25_000
            seen += re.findall(r"<bdi>(book\d+)</bdi>", page.text)
        assert seen == [f"book{place:03}" for place in range(300)]
