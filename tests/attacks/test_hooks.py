"""Plugins that are invalid, that fail, or that try to do more than they may."""

import sys
from pathlib import Path

import pytest

from tests.support.cli import called
from webapp.elicitations.plugins import plugin_named

HEAD = "from flows.hooks import after, around, before, replace\n"
CLASS = """
class Audit:
    @after("settle")
    def note(self, question): ...
"""
NONE: dict[str, tuple[str, str]] = {
    "missing module": ("", "There is no module 'nowhere'"),
    "module with a missing import": ("import no_such_thing", "imports 'no_such_thing'"),
    "module that raises": ("1 / 0", "could not be imported: ZeroDivisionError"),
    "missing attribute": ("", "has no 'audit'"),
    "class instead of object": (
        f"{CLASS}\naudit = Audit",
        "is a class, but a plugin is an object. So write Audit()",
    ),
    "object without hooks": ("audit = object()", "has no hooks. Mark its methods"),
    "misspelt stage": (CLASS.replace("settle", "setle"), "perhaps 'settle' is meant"),
    "replaced guard": (CLASS.replace('after("settle")', 'replace("verify")'), "is a guard"),
    "around hook for a stage that writes": (
        CLASS.replace('after("settle")', 'around("start")'),
        "start stores its result",
    ),
}


@pytest.mark.parametrize("case", NONE)
async def test_invalid_plugin_stops_start_with_explanation(tmp_path: Path, case: str) -> None:
    text, says = NONE[case]
    (tmp_path / "my_rules.py").write_text(HEAD + text)
    name = "nowhere:audit" if case == "missing module" else "my_rules:audit"
    ended = await called("serve", "--port", "0", "--plugin", name, home=tmp_path)
    assert (ended.status, ended.out) == (1, "")
    assert f"elicit: The plugin {name}" in ended.err
    assert says in ended.err
    assert "Traceback" not in ended.err


async def test_command_with_broken_configured_plugin_fails(tmp_path: Path) -> None:
    (tmp_path / "my_rules.py").write_text(f"{HEAD}{CLASS}")
    broken = {"ELICIT_PLUGINS": "my_rules:audit"}
    assert (await called("pending", "list", home=tmp_path, extra=broken)).status == 1


@pytest.mark.parametrize("name", ["my_rules", "my_rules.py:audit", "./my_rules:audit", ":audit"])
async def test_file_path_is_refused_as_plugin(tmp_path: Path, name: str) -> None:
    by_option = await called("serve", "--port", "0", "--plugin", name, home=tmp_path)
    by_setting = await called("serve", "--port", "0", home=tmp_path, extra={"ELICIT_PLUGINS": name})
    for ended in (by_option, by_setting):
        assert (ended.status, "as in my_rules:audit" in ended.err) == (2, True)
    assert "ELICIT_PLUGINS" in by_setting.err


def test_installed_module_takes_precedence_over_plugin_in_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "hooks.py").write_text("audit = 1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    with pytest.raises(TypeError, match="has no 'audit'"):
        plugin_named("flows.hooks:audit")
