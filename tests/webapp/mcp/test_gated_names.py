"""Checks at startup: ELICIT_GATE names only existing tools, and tools only known approvers."""

import logging
from typing import Any

import pytest
from fastmcp import FastMCP
from fastmcp.server import create_proxy

from flows import elicit
from flows.kinds.gate import GatePolicy
from tests.support.mcp_server import new_server
from webapp.app import open_app
from webapp.mcp.before import GateWithoutTool, must_name_tools, warn_of_approvers
from webapp.settings.settings import read_settings


def with_tools(server: Any) -> Any:
    @server.tool()
    def delete_file(name: str) -> str:
        return name

    @server.tool()
    def read_file(name: str) -> str:
        return name

    return server


def policy(*patterns: str) -> GatePolicy:
    return GatePolicy(patterns=patterns)


async def test_gate_setting_with_unknown_tool_name_stops_startup(library):
    # finding: A7
    server = with_tools(new_server(library))
    await must_name_tools(policy("delete_file", "read_*"), server)
    for word, near in (("delete_fiel", "perhaps delete_file is meant"), ("pay", "no tool 'pay'.")):
        with pytest.raises(GateWithoutTool, match=near):
            await must_name_tools(policy("read_file", word), server)


async def test_gate_pattern_without_matching_tool_logs_a_warning(library, caplog):
    # finding: A7
    server = with_tools(new_server(library))
    with caplog.at_level(logging.WARNING):
        await must_name_tools(policy("read_*"), server)
        assert not caplog.records
        await must_name_tools(policy("pay_*"), server)
    (warning,) = caplog.records
    assert (warning.message, vars(warning)["word"]) == ("gate.names_no_tool", "pay_*")


async def test_unknown_approver_logs_a_warning(library, caplog):
    server = with_tools(new_server(library))

    @server.tool()
    @elicit.gate(approver="finance")
    def refund(order: str) -> str:
        return order

    with caplog.at_level(logging.WARNING):
        await warn_of_approvers({"finance"}, server)
        assert not caplog.records
        await warn_of_approvers({"legal"}, server)
    (warning,) = caplog.records
    assert warning.message == "gate.names_no_approver"
    assert vars(warning)["needs"] == "[approvers.finance] in elicit.toml"


async def test_mounted_tool_matches_its_own_name_and_its_listed_name():
    # finding: A7
    server = FastMCP("shop")
    server.mount(with_tools(FastMCP("files")), namespace="files")
    await must_name_tools(policy("files_read_file", "read_file"), server)
    with pytest.raises(GateWithoutTool):
        await must_name_tools(policy("file_read_file"), server)


async def test_unknown_gate_name_of_a_proxy_logs_a_warning(caplog):
    # finding: A7
    server = create_proxy(with_tools(FastMCP("files")), name="shop")
    with caplog.at_level(logging.WARNING):
        await must_name_tools(policy("pay"), server)
    assert [one.message for one in caplog.records if one.name == "webapp.mcp.gated_names"] == [
        "gate.names_no_tool"
    ]


async def test_app_with_gate_for_unknown_tool_does_not_start(tmp_path):
    # finding: A7
    settings = read_settings({"HOME": str(tmp_path), "ELICIT_GATE": "pay"})
    with pytest.raises(GateWithoutTool, match="ELICIT_GATE"):
        async with open_app(settings, with_tools(new_server("mcp"))):
            pass
