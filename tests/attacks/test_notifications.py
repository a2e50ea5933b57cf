"""Attacks through notifications: by the text of a question, and on the operator's addresses."""

import logging
from datetime import timedelta

import pytest

from tests.support.clock import Clock
from tests.support.notify_env import (
    asked,
    mail_server,
    notifying,
    round_of,
    rows_of,
    web_hook,
)
from webapp.cli.doctor import examine_notifications
from webapp.notifications.delivery import Message, NotifyTable, deliver
from webapp.stores.sqlite import MemoryStore
from webapp.telemetry.metrics import Metrics
from webapp.telemetry.work import Telemetry

DAY = timedelta(days=1)


async def test_hostile_question_becomes_one_line_without_link_markup_or_header() -> None:
    hostile = (
        "Approve?\r\nBcc: all@example.com\r\n\r\n<script>alert(1)</script> https://evil.example/x "
        "evil.example <!channel> @everyone [Sign in](http://evil.example) *now* \u202eabc "
        + "z"
        * 5000
    )
    store, clock = MemoryStore(), Clock()
    async with mail_server() as mails, web_hook() as hook:
        table = NotifyTable(
            name="finance",
            to=(mails.address("finance@example.com"), hook.address),
            with_question=True,
        )
        async with notifying(store, clock, deliver, table) as service:
            await asked(service, message=hostile, timeout=DAY)
            await round_of(service)
        (mail,) = mails.received
        assert mails.recipients == ["finance@example.com"]
        assert mail["Bcc"] is None
        for text in (*mails.texts(), *hook.texts()):
            (line,) = [line for line in text.splitlines() if "Question" in line]
            assert "Approve? Bcc" in line
            assert len(line) < 200
            for part in ("evil.example", "://evil", "<", "@", "[", "]", "*", "\u202e", "script>"):
                assert part not in line.replace("<br/>", "")


async def test_password_of_an_address_is_in_no_row_log_metric_or_finding(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    metrics, telemetry = (made := Metrics()), Telemetry(metrics=made)
    async with web_hook() as hook:
        hook.statuses = [401, 200]
        table = NotifyTable(name="finance", to=(hook.address,))
        clock = Clock()
        async with notifying(MemoryStore(), clock, deliver, table, telemetry=telemetry) as service:
            await asked(service, timeout=DAY)
            await round_of(service)
            (row,) = await rows_of(service)
            assert row.why == "HTTP 401"
            findings = await examine_notifications(service)
            clock.tick(minutes=1)
            await round_of(service)
            assert len(hook.received) == 2
    shown = [caplog.text, *(str(vars(record)) for record in caplog.records)]
    for text in (*shown, metrics.page({}).decode(), repr(row), repr(findings), repr(table)):
        assert "hook-password" not in text
        assert hook.url not in text


async def test_server_that_never_answers_is_given_up_after_the_time_limit() -> None:
    async with web_hook() as hook:
        hook.is_silent = True
        why = await deliver(hook.address, Message(title="t", body="b"), seconds=3)
    assert why == "no answer within 3 seconds"
