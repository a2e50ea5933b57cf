"""An approver who has no page open is notified, reminded, and decides while the call is held."""

from datetime import timedelta

import pytest

from tests.support.approving import approving, press, shop
from tests.support.mcp_server import LEGACY, MODERN, text_of
from tests.support.notify_env import mail_server, messages_are_noted, web_hook
from webapp.limits import CallLimits
from webapp.notifications.delivery import NotifyTable
from webapp.sweeper import fall_due

# The call is held while the reminder becomes due.
HELD = CallLimits(call=timedelta(hours=9), retry=timedelta(hours=9), link=timedelta(hours=9))


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_approver_is_notified_and_reminded_by_mail_and_web_hook_while_the_call_is_held(
    revision: str,
) -> None:
    # finding: XQ4
    async with mail_server() as mails, web_hook() as hook:
        table = NotifyTable(
            name="finance",
            to=(mails.address("finance@example.com"), hook.address),
            remind_after=timedelta(hours=4),
            escalate_after=timedelta(hours=6),
            escalate_to=(mails.address("boss@example.com"),),
        )
        async with (
            approving(shop(), limits=HELD, notify=[table]) as here,
            here.asking(revision=revision) as caller,
        ):
            call = caller.call("ship", order="o8")
            await here.env.pending()
            await fall_due(here.env.service)
            await messages_are_noted(here.env.service, 1)
            here.clock.tick(hours=4)
            await fall_due(here.env.service)
            await messages_are_noted(here.env.service, 2)
            frank = await here.signed_in("frank")
            await press(frank, await here.one(frank), "approve")
            assert text_of(await call) == "accepted: shipped"
            here.clock.tick(hours=20)
            await fall_due(here.env.service)
            await here.env.service.notifier.send_all()
            assert mails.recipients == ["finance@example.com"] * 2, "no mail reports an answer"
            for first, reminder in (mails.texts(), hook.texts()):
                for text in (first, reminder):
                    assert "A request waits for your approval" in text or "Reminder" in text
                    assert here.inbox in text
                    for word in ("Ship it?", "o8", "alice", "/e/", "ship"):
                        assert word not in text.replace(here.env.url, "")
                assert first.startswith("A request waits for your approval")
                assert reminder.startswith("Reminder: a request waits for your approval")
