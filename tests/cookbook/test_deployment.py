"""The deployment that another person approves, in each cell, tested with the public test kit."""

import pytest

PRODUCTION = {"environment": "production", "version": "v1.1.0"}


async def test_refused_deployment_is_not_rolled_out(serve):
    async with serve("deployment") as (person, example):
        person.refuses(by="flora", reason="Freeze until Monday")
        result = await person.call("deploy", **PRODUCTION)
        assert result.text.startswith("Not deployed: ")
        assert "Freeze until Monday" in result.text
        assert example.log == []


async def test_request_waits_over_a_restart_until_somebody_approves(serve):
    async with serve("deployment") as (person, example):
        person.leaves_open()
        assert "Waiting for operations" in (await person.call("deploy", **PRODUCTION)).text
        await person.let_pass(hours=5)
        await person.restarts()
        person.approves(by="frank", comment="Go")
        assert "Go" in (await person.call("deploy", **PRODUCTION)).text
        assert example.log == ["production v1.1.0"]


async def test_request_that_nobody_decides_expires(serve):
    async with serve("deployment") as (person, example):
        person.never_comes()
        await person.call("deploy", **PRODUCTION)
        assert example.log == []
        person.approves(comment="Now")  # the same call asks again
        assert "Now" in (await person.call("deploy", **PRODUCTION)).text
        assert len(person.asked) == 2


async def test_approver_does_not_approve_own_deployment(serve):
    async with serve("deployment") as (person, example):
        frank = await person.another("frank")
        frank.approves(by="frank", comment="Trust me")
        with pytest.raises(AssertionError, match="no form for the planned action"):
            await frank.call("deploy", **PRODUCTION)
        assert example.log == []


async def test_approval_needs_a_comment(serve):
    async with serve("deployment") as (person, example):
        person.approves()
        with pytest.raises(AssertionError, match="Plan approves with a comment"):
            await person.call("deploy", **PRODUCTION)
        assert example.log == []


async def test_staging_and_refused_versions_ask_nobody(serve):
    async with serve("deployment") as (person, example):
        await person.call("deploy", environment="staging", version="v1.1.0")
        assert example.log == ["staging v1.1.0"]
        assert (
            "already runs"
            in (await person.call("deploy", environment="production", version="v1.0.0")).text
        )
        assert (
            "not a version"
            in (await person.call("deploy", environment="production", version="latest")).text
        )
        assert person.asked == ()
