"""`python -m docs.generated`: write the pages that come from the code, such as the settings.

The pages are committed, so that they can be read anywhere. tests/test_docs.py compares them with
the code.
"""

import argparse
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from flows import InvalidUse, errors
from flows.errors import ElicitError
from flows.providers.catalogue import LISTINGS, CatalogueEntry
from webapp.cli.main import COMMANDS, parser_for
from webapp.pages import (
    views,
    views_forms,
    views_openers,
    views_operator,
    views_own,
)
from webapp.pages.views import View
from webapp.settings.settings import TABLE
from webapp.telemetry.families import COUNTED, OF_THE_STORE, MetricFamily

DOCS = Path(__file__).parent
UNTIL = "<!-- Written until here. -->\n"
WRITTEN = "<!-- Written by `python -m docs.generated`; change the code, not this page. -->"


def settings() -> str:
    """Return the page with each setting."""
    sections = [
        f"## `{row.name}`\n\n{_sentence(row.says)}\n\nDefault: {row.shown_default}" for row in TABLE
    ]
    return f"""# Settings

{WRITTEN}

Settings are environment variables, read once when the server starts. On your own machine none is needed. If the name of an environment variable begins with `ELICIT_` and is not on this page, the server refuses to start, and suggests the most similar name. `elicit settings` lists the settings in a terminal, and shows which ones are set.

{(chr(10) * 2).join(sections)}
"""


def commands() -> str:
    """Return the page with each command and its arguments, as its parser declares them."""
    sections = [_section(parser_of(name), level=2) for name in COMMANDS]
    return f"""# Commands

{WRITTEN}

The exit status is 0 if the command succeeded, 1 if it failed, and 2 if its arguments are wrong. `--help` after any command prints its section of this page.

| command | what it does |
|---|---|
{_lines(f"| [`elicit {name}`](#elicit-{name}) | {says} |" for name, says in COMMANDS.items())}

{(chr(10) * 2).join(sections)}
"""


def error_tree() -> str:
    """Return the section with each error, in the order of the tree."""
    return f"""## Errors

{WRITTEN}

Every error that elicit-url raises on purpose is an `ElicitError`. Import the errors that your tool handles from `flows`, for example `from flows import Declined`. An error that leaves a tool reaches the model as its message and its code, such as `[ELICITATION_DECLINED]`. The code never changes; the message may.

The first column has the name of each error, its code, its JSON-RPC code and its HTTP status.

| error | what happened |
|---|---|
{_lines(_row(each, depth) for each, depth in _tree(ElicitError))}
"""


def metrics() -> str:
    """Return the section with each family of metrics."""
    return f"""### All metrics

{WRITTEN}

`deploy/grafana/elicit-url.json` is a dashboard for these metrics, and `deploy/prometheus/alerts.yml` has alert rules.

Labels take their values from the code and the settings: kinds of questions, statuses, operations, and the names of providers that you configured. A provider that an author's code declares is `other`. Labels contain no names of people and no ids.

#### Counted in each process

The workers of one machine report their figures together: each worker answers for all of them.

{_families(COUNTED)}

#### About the store

All processes of a store report the same figures. For several servers, use the maximum and not the sum: `max by (kind, age) (elicit_questions_open)`.

{_families(OF_THE_STORE)}
"""


def providers() -> str:
    """Return the section with each provider of the catalogue."""
    return f"""### List of providers

{WRITTEN}

A tool names one of these: `elicit.oauth("hubspot")`. Set `ELICIT_{{NAME}}_CLIENT_ID` and `ELICIT_{{NAME}}_CLIENT_SECRET`, and register `{{ELICIT_URL}}/callback/{{name}}` as the redirect address. A table in `elicit.toml` declares any other provider. A table with the name of a provider in this list replaces that provider, except a built-in one. `like` copies one for a second registration.

None of these declarations was tested against the vendor. "Documented" means: written from the page of the vendor that is linked. "Other clients" means: written from the code of other OAuth clients that connect to the provider. The tests run each declaration against a simulated server that requires exactly what the declaration says.

| name | provider | written from | PKCE | client | host | what to know |
|---|---|---|---|---|---|---|
{_lines(map(_listing, LISTINGS))}

#### What cannot be declared

- A token that is not sent in the `Authorization` header.
- A token endpoint whose host is only known from the callback.
- A second request that exchanges one access token for another, in place of a refresh token.
- A refusal of the authorization endpoint that has no `error` parameter.
- A provider that names the account's owner only in a list, or only in reply to a request with the token in its address.
- A signature of the callback's parameters by the provider.
- Client authentication by TLS certificates.
"""


def _listing(one: CatalogueEntry) -> str:
    provider = one.provider
    source = f"[documented]({one.source})" if one.status == "documented" else "other clients"
    host = ", ".join(f"`{each}`" for each in provider.tenants) or "one"
    pkce = "yes" if provider.pkce else "no"
    return (
        f"| `{provider.name}` | {provider.label} | {source} | {pkce} | `{provider.client_auth}` "
        f"| {host} | {one.cannot} |"
    )


def templates() -> str:
    """Return the section with the fields of each template's view."""
    rows = _lines(
        f"| `{view.template}` | {_first_sentence(view)} "
        f"| {', '.join(f'`{field.name}`' for field in fields(view))} |"
        for view in sorted(_views(), key=lambda one: one.template)
    )
    return f"""### Fields of each page

{WRITTEN}

A template reads its fields from `view`. Fields of values in a field are in the docstrings of `webapp/pages/views*.py`.

| template | page | fields of `view` |
|---|---|---|
{rows}
"""


PAGES: dict[str, Callable[[], str]] = {
    "reference/settings.md": settings,
    "reference/commands.md": commands,
    "reference/api.md": error_tree,
    "how-to/monitoring.md": metrics,
    "how-to/providers.md": providers,
    "how-to/pages.md": templates,
}


def page(name: str) -> str:
    """Return the page with its generated part, and with the text around that part as it is now."""
    text, shown = PAGES[name](), (DOCS / name).read_text("utf-8")
    before, heading, _ = shown.partition(text.partition("\n")[0] + "\n")
    assert heading, f"docs/{name} has no {text.splitlines()[0]!r}"
    _, until, after = shown.partition(UNTIL)
    return f"{before}{text}{until and chr(10)}{until}{after}"


def _views() -> set[type[View]]:
    modules = (views, views_forms, views_openers, views_operator, views_own)
    found = (each for module in modules for each in vars(module).values())
    return {
        each
        for each in found
        if isinstance(each, type) and issubclass(each, View) and hasattr(each, "template")
    }


def _first_sentence(view: type[View]) -> str:
    first = " ".join((inspect.getdoc(view) or "").partition("\n\n")[0].split())
    return first.partition(". ")[0].rstrip(".").replace("|", "/")


def _families(families: Sequence[MetricFamily]) -> str:
    rows = _lines(
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} "
        f"| {one.says} |"
        for one in families
    )
    return f"| metric | kind | labels | what it says |\n|---|---|---|---|\n{rows}"


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command, with its arguments."""
    (commands,) = subcommands(parser_for([name]))
    return commands.choices[name]


def subcommands(
    parser: argparse.ArgumentParser,
) -> list["argparse._SubParsersAction[argparse.ArgumentParser]"]:
    return [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]


def _section(parser: argparse.ArgumentParser, *, level: int) -> str:
    within = subcommands(parser)
    hidden = [*within, *(each for each in parser._actions if each.help == argparse.SUPPRESS)]
    actions = [each for each in parser._actions if each not in hidden and each.dest != "help"]
    usage = " ".join([parser.prog, *map(_usage, actions), *["COMMAND ..."] * bool(within)])
    parts = [
        f"{'#' * level} {parser.prog}",
        parser.description or "",
        f"```text\n{usage}\n```",
    ]
    if actions:
        rows = _lines(f"| `{_named(each)}` | {_help(parser, each)} |" for each in actions)
        parts.append(f"| argument | meaning |\n|---|---|\n{rows}")
    for action in within:
        parts.extend(_section(each, level=level + 1) for each in action.choices.values())
    return "\n\n".join(parts)


def _usage(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"[{_value(action)}]" if action.nargs in ("?", "*") else _value(action)
    text = " ".join([action.option_strings[-1], *[_value(action)] * (action.nargs != 0)])
    return text if action.required else f"[{text}]"


def _named(action: argparse.Action) -> str:
    if not action.option_strings:
        return _value(action)
    return " ".join([", ".join(action.option_strings), *[_value(action)] * (action.nargs != 0)])


def _value(action: argparse.Action) -> str:
    if action.choices is not None and action.metavar is None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    metavar = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    return metavar if isinstance(metavar, str) else " ".join(metavar)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return _sentence((action.help or "") % {**vars(action), "prog": parser.prog})


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}" if text else ""


def _tree(kind: type[ElicitError], depth: int = 0) -> Iterator[tuple[type[ElicitError], int]]:
    yield kind, depth
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__ or each is InvalidUse:
            yield from _tree(each, depth + 1)


def _row(kind: type[ElicitError], depth: int) -> str:
    what = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
    indent = "&nbsp;" * 4 * depth
    codes = f"`{kind.name}`, {kind.jsonrpc_code}, {kind.http_status}"
    return f"| {indent}**`{kind.__name__}`**<br>{indent}{codes} | {what} |"


def _lines(rows: Iterator[str]) -> str:
    return "\n".join(rows)


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(page(name), "utf-8")
