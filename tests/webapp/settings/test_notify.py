"""Notifications in elicit.toml: each mistake is reported with its table, without the address."""

import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.settings import PUBLIC, problems_in
from webapp.notifications.delivery import NotifyTable
from webapp.settings.config_file import BadDeclaration, read_declarations
from webapp.settings.settings import read_settings

HOOK = "json://hooks.example/in"
ISSUER = {
    "ELICIT_ISSUER": "https://login.example/tenant",
    "ELICIT_ISSUER_CLIENT_ID": "our id",
    "ELICIT_ISSUER_CLIENT_SECRET": "our secret",
}
APPROVERS = '[approvers.finance]\nusers = ["ann"]\n'
WHOLE = f"""
{APPROVERS}
[notify.finance]
to = ["mailto://mail.example?from=elicit@example.com&to=finance@example.com", "{HOOK}"]
remind_after = "4h"
remind_at_most = 3
escalate_after = "1d"
escalate_to = ["managers", "json://boss.example/in"]
with_question = true

[notify.managers]
to = ["json://managers.example/in"]

[notify.ada]
subjects = ["248289761001"]
"""


def environment(
    tmp_path: Path, text: str, *, mode: int = 0o600, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    path = tmp_path / "elicit.toml"
    path.write_text(text)
    path.chmod(mode)
    return {**PUBLIC, **ISSUER, "ELICIT_CONFIG": str(path), **(more or {})}


def problems_of(text: str) -> list[str]:
    with pytest.raises(BadDeclaration) as refused:
        read_declarations(text, source="elicit.toml")
    return refused.value.problems


def test_every_key_is_read_with_addresses_of_variables_and_named_tables(tmp_path: Path) -> None:
    more = {"ELICIT_NOTIFY_ADA": f"{HOOK} json://robot:hunter2@hooks.example"}
    finance, managers, ada = read_settings(environment(tmp_path, WHOLE, more=more)).notify
    assert finance == NotifyTable(
        name="finance",
        to=("mailto://mail.example?from=elicit@example.com&to=finance@example.com", HOOK),
        remind_after=timedelta(hours=4),
        remind_at_most=3,
        escalate_after=timedelta(days=1),
        escalate_to=("json://managers.example/in", "json://boss.example/in"),
        with_question=True,
    )
    assert managers == NotifyTable(name="managers", to=("json://managers.example/in",))
    assert ada == NotifyTable(
        name="ada",
        to=(HOOK, "json://robot:hunter2@hooks.example"),
        after=timedelta(minutes=1),
        subjects=frozenset({"248289761001"}),
    )
    assert "hooks" not in repr((finance, ada))


# The addresses of a file are checked together, in a process that imports Apprise.
WRONG_ADDRESSES = [
    ("slak://T1JJ3T3L2/A1BRTD4JD/hunter2", "no service slak://. Perhaps slack:// is meant."),
    ("slack://T1JJ3T3L2/hunter2", "not a valid address of slack://: a part is missing"),
    ("slack//T1JJ3T3L2/hunter2", "is not an address. Write an address in Apprise's"),
    ("https://chat.example/hunter2", "no service https://. For a web hook, write json:// or"),
    ("https://hooks.slack.com/services/T1/hunter2", "a chat's web hook, a part is missing or"),
    ("mailto://user:hunter2@example.com:x/?to=", "not a valid address of mailto://"),
    ("mailto://localhost?from=a@example.com&to=hunter2", "not a valid address of mailto://"),
    ("json://hooks.example/\nhunter2", "is not an address"),
    ("json://hooks.example/" + "hunter2" * 400, "must not be longer than 2,000 characters"),
    ("hunter2://x y", "is not an address"),
    ("hun_ter2://x", "no service its service"),
    ("", "is not an address"),
]


def test_addresses_with_typing_errors_are_refused_at_the_start_with_their_tables(
    tmp_path: Path,
) -> None:
    quoted = [address.replace("\n", "\\n") for address, _ in WRONG_ADDRESSES]
    tables = [
        f'[notify.t{number}]\nsubjects = ["{number}"]\nto = ["{HOOK}", "{address}"]\n'
        for number, address in enumerate(quoted)
    ]
    problems = problems_in(environment(tmp_path, "".join(tables)))
    assert len(problems) == len(WRONG_ADDRESSES)
    for number, (address, says) in enumerate(WRONG_ADDRESSES):
        place = f"ELICIT_CONFIG: notify.t{number}.to, address 2: "
        (problem,) = [one for one in problems if one.startswith(place)]
        assert says in problem, address


def test_address_of_a_variable_with_a_typing_error_is_refused_with_the_variable(
    tmp_path: Path,
) -> None:
    one_word = [address for address, _ in WRONG_ADDRESSES if address and not {*address} & {*" \n"}]
    tables = [
        f'[notify.t{number}]\nsubjects = ["{number}"]\nto = ["{HOOK}"]\n'
        for number in range(len(one_word))
    ]
    given = {f"ELICIT_NOTIFY_T{number}": address for number, address in enumerate(one_word)}
    problems = problems_in(environment(tmp_path, "".join(tables), more=given))
    places = {problem.split(": ")[0] for problem in problems}
    assert places == {f"{variable}, address 1" for variable in given}
    assert len(problems) == len(given)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("to = 3", "notify.finance.to: must be a list of texts."),
        ('To = ["json://x"]', "notify.finance.To: unknown; the keys are"),
        ("remind_after = 5", "notify.finance.remind_after: must be a duration in quotation marks"),
        ('remind_after = "1s"', "notify.finance.remind_after: must be a number of seconds, or 7d"),
        ('remind_after = "60d"', "notify.finance.remind_after: must be a number of seconds, or 7d"),
        ("remind_at_most = 3", "remind_at_most: has no effect without remind_after."),
        (
            'remind_after = "1h"\nremind_at_most = 0',
            "remind_at_most: must be a whole number from 1",
        ),
        ('escalate_after = "1h"', "escalate_after: has no effect without escalate_to."),
        ('escalate_to = ["json://x"]', "escalate_to: has no effect without escalate_after."),
        ('language = "tlh"', "notify.finance.language: 'tlh' has no catalogue. There are: en, de."),
        ('users = [""]', "notify.finance.users: '' is not a valid user id."),
        ("[notify.Fin]", "notify.Fin: a name has 1 to 32 of a-z, 0-9 and _"),
    ],
)
def test_invalid_table_is_refused_with_its_key(text: str, says: str) -> None:
    problems = problems_of(f"[notify.finance]\n{text}\n")
    assert any(says in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'[notify.finanse]\nto = ["{HOOK}"]', "[approvers.finanse] does not exist"),
        ("[notify.finance]", "notify.finance: has no address. Add to, or set ELICIT_NOTIFY_FIN"),
        (
            f'[notify.finance]\nto = ["{HOOK}"]\nescalate_after = "1h"\nescalate_to = ["boss"]',
            "notify.finance.escalate_to, entry 1: is neither an address nor the name of a table",
        ),
        (
            "[notify.finance]\nto = [" + ", ".join([f'"{HOOK}"'] * 9) + "]",
            "notify.finance.to: there are 9 addresses, and 8 at most",
        ),
    ],
)
def test_table_without_people_or_addresses_is_refused(tmp_path: Path, text: str, says: str) -> None:
    problems = problems_in(environment(tmp_path, APPROVERS + text))
    assert any(says in problem for problem in problems), problems


def test_subjects_need_the_issuer_where_they_sign_in(tmp_path: Path) -> None:
    given = environment(tmp_path, f'[notify.ada]\nsubjects = ["1"]\nto = ["{HOOK}"]')
    (problem,) = problems_in({name: given[name] for name in given.keys() - ISSUER.keys()})
    assert "notify.ada.subjects: needs ELICIT_ISSUER" in problem


def test_variable_of_an_unknown_table_is_refused(tmp_path: Path) -> None:
    given = environment(
        tmp_path, WHOLE, more={"ELICIT_NOTIFY_FINANSE": HOOK, "ELICIT_NOTIFY_ADA": HOOK}
    )
    (problem,) = problems_in(given)
    assert problem == (
        "ELICIT_NOTIFY_FINANSE: no setting has this name; perhaps ELICIT_NOTIFY_FINANCE is meant."
    )


def test_file_with_a_password_that_others_can_read_is_refused(tmp_path: Path) -> None:
    text = f'{APPROVERS}[notify.finance]\nto = ["json://robot:hunter2@hooks.example"]\n'
    (problem,) = problems_in(environment(tmp_path, text, mode=0o644))
    assert "notify.finance.to, address 1: contains a password or a token" in problem
    assert "chmod 600" in problem
    assert "ELICIT_NOTIFY_FINANCE" in problem
    assert read_settings(environment(tmp_path, text, mode=0o640)).notify
    plain = f'{APPROVERS}[notify.finance]\nto = ["{HOOK}"]\n'
    assert read_settings(environment(tmp_path, plain, mode=0o644)).notify


def test_missing_apprise_is_refused_with_the_name_of_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)  # as if it were not installed
    text = f'{APPROVERS}[notify.finance]\nto = ["{HOOK}"]\n'
    (problem,) = problems_in(environment(tmp_path, text))
    assert problem == (
        "ELICIT_CONFIG: notify.finance.to, address 1: Apprise is not installed. Install it with: "
        "pip install 'elicit-url[notify]'"
    )
    assert read_settings(environment(tmp_path, APPROVERS)).notify == ()


def test_apprise_is_never_imported_into_the_server(tmp_path: Path) -> None:
    text = f'{APPROVERS}[notify.finance]\nto = ["{HOOK}"]\n'
    code = (
        "import sys, webapp.app, webapp.cli.main, flows.elicit\n"
        "from webapp.settings.settings import read_settings\n"
        "assert read_settings().notify\n"
        "print('apprise' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(tmp_path, text),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
