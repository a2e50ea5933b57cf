"""The inbox in a browser: its pages, empty lists, and standing approvals."""

import re
from html import unescape
from urllib.parse import urljoin

import mcp_types as types

from flows import elicit
from tests.support.approving import approving, press, shop
from tests.support.asking_env import asking_env
from tests.support.mcp_server import FORM, MODERN, Page, caller_of, new_server
from webapp.identity.approvers import Approver
from webapp.kinds.decision import LISTED_AT_MOST
from webapp.settings.identity import IdentitySettings


def link_to(text: str, page: Page, here: str) -> str:
    """Return the address of the link with this text."""
    found = re.search(rf'<a href="([^"]+)">{text}</a>', page.text)
    assert found is not None, page.text
    return urljoin(here, unescape(found[1]))


def addresses(page: Page, here: str) -> list[str]:
    """Return the addresses of the listed requests."""
    found = re.findall(r'<a href="(/inbox/[a-z]+/[^"]+)"', page.text)
    return [urljoin(here, unescape(each)) for each in found]


async def test_older_requests_and_decisions_are_on_further_pages():
    async with approving(shop()) as here, here.asking() as caller:
        for number in range(LISTED_AT_MOST + 1):
            await caller.result("refund", order=f"o{number}")
            here.clock.tick(minutes=1)
        frank = await here.signed_in("frank")
        first = await here.waiting(frank)
        assert len(first) == LISTED_AT_MOST
        older = await frank.visit(
            link_to("Older requests", await frank.visit(here.inbox), here.inbox)
        )
        (last,) = addresses(older, here.inbox)
        assert last not in first
        assert "Your own approvals" not in older.text
        for address in first[:2]:
            await press(frank, address, "decline")
        waiting, decided = await here.inboxes(frank)
        assert decided == first[:2]
        assert len(waiting) == LISTED_AT_MOST - 1


async def test_empty_inbox_and_inbox_of_non_approver_say_so():
    async with approving(shop()) as here:
        frank, alice = await here.signed_in("frank"), await here.signed_in("alice")
        assert "Nothing is waiting." in (await frank.visit(here.inbox)).text
        page = await alice.visit(here.inbox)
        assert "You don't decide for others" in page.text
        assert (await alice.visit(here.inbox + "?of=finance&after=x")).status == 200
        for path in ("/finance/nothing", "/finance/" + "x" * 200, "/Finance/x"):
            assert (await frank.visit(here.inbox + path)).status == 404


async def test_own_approvals_are_listed_and_can_be_revoked():
    # parity: T7
    server = new_server("mcp")

    @server.tool(title="Delete to-dos", annotations=types.ToolAnnotations(destructive_hint=True))
    def delete(count: int) -> str:
        return f"deleted {count}"

    async with caller_of(server, MODERN, declares=FORM, fills=[{}, {}]) as (env, caller):
        for _ in range(2):
            assert await caller.text("delete", count=5) == "deleted 5"
        assert len(caller.forms) == 1
        person = await env.person()
        inbox = f"{env.url}/inbox"
        page = await person.visit(inbox)
        assert "Your own approvals" in page.text
        assert "<bdi>Delete to-dos</bdi>" in page.text
        # finding: XP11
        (place,) = re.findall(r'href="([^"]*/revoke)"', page.text)
        before = await person.visit(env.url + place)
        assert before.heading == "Ask you again before “Delete to-dos” runs?"
        assert "Your own approvals" in (await person.visit(inbox)).text
        stranger = await person.browser.post(before.leading("/revoke"), data={})
        assert stranger.status_code == 403
        assert (await person.press(inbox, to="/revoke")).status == 303
        assert "Your own approvals" not in (await person.visit(inbox)).text
        await caller.text("delete", count=5)
        assert len(caller.forms) == 2


async def test_users_of_application_decide_for_each_other():
    warehouse = Approver(name="warehouse", users=frozenset({"ann", "bob"}))
    async with asking_env(identity=IdentitySettings(approvers=(warehouse,))) as here:

        async def work() -> bool:
            return await elicit.confirm("Ship it?", approver="warehouse")

        block = here.begin(work)
        link, inbox = await block.link(), f"{here.url}/inbox"
        ann, bob, eve = [await here.browser(user) for user in ("ann", "bob", "eve")]
        assert (await ann.visit(link.url)).heading == "Waiting for warehouse"
        (address,) = addresses(await ann.visit(inbox), inbox)
        assert "somebody else has to decide it" in (await ann.visit(inbox)).text
        assert addresses(await eve.visit(inbox), inbox) == []
        assert (await eve.visit(address)).status == 404
        assert addresses(await bob.visit(inbox), inbox) == [address]
        assert "Approved" in (await press(bob, address, "approve")).text
        assert await block is True
