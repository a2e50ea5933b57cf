"""The table of docs/reference/clients.md: a row for each host, a column for each promise."""

from collections.abc import Sequence
from pathlib import Path

from tests.hosts.checks import PROMISES, Verdict
from tests.hosts.host import Host, RunHost, StartedHost
from tests.support.programs import FASTMCP_RUN

FILE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "clients.md"
BEGIN, END = "<!-- made by python -m tests.hosts -->\n", "<!-- to here -->\n"
ELICIT_SERVE = ("python", "-P", "-m", "elicit_url", "serve", "{app}", "--fd", "{fd}")
UVICORN = ("uvicorn", "{app}", "--fd", "{fd}")
GUNICORN = ("gunicorn", "-k", "uvicorn_worker.UvicornWorker", "--bind", "fd://{fd}", "{app}")
SLOW = "no time limit for request headers: put a proxy with such a limit in front"
PAIRED = "no caller is local: use `elicit pair` or `http=webapp.Accepted`"
NOTED = {"local": PAIRED, "slow senders": SLOW}
RELAYED = {
    "local": "callers behind a proxy are not local: use `elicit pair` or ELICIT_ISSUER",
    "slow senders": "set `client_header_timeout` in nginx",
    "logs": "nginx logs every link: set `access_log off`",
}

HOSTS: Sequence[Host] = (
    StartedHost(
        name="elicit serve",
        says="`elicit serve my_tools:mcp`, `my_tools:create_server`",
        command=ELICIT_SERVE,
        app="served",
    ),
    StartedHost(
        name="elicit serve, two workers",
        says="`elicit serve my_tools:mcp --workers 2`",
        command=(*ELICIT_SERVE, "--workers", "2"),
        app="served",
    ),
    RunHost(
        name="mcp.run()",
        says='`add_pages(mcp)`, `mcp.run(transport="streamable-http")`',
        command=("-m", "tests.hosts.runs", "{port}"),
    ),
    RunHost(
        name="fastmcp run",
        says="`add_pages(mcp)`, `fastmcp run my_tools.py --transport http`",
        command=(
            *FASTMCP_RUN,
            "tests/hosts/run_by_fastmcp.py",
            *("--transport", "http", "--port", "{port}"),
        ),
    ),
    StartedHost(
        name="a low-level Server",
        says="`uvicorn.run(create_app(read_settings(), server), http=webapp.Accepted)`",
        command=("python", "-m", "tests.hosts.accepting", "{app}", "{fd}"),
        app="beside_low_level",
    ),
    StartedHost(name="uvicorn", says="`uvicorn my_app:app`", command=UVICORN, own=NOTED),
    StartedHost(
        name="uvicorn with `webapp.Accepted`",
        says="`uvicorn.run(app, http=webapp.Accepted)`",
        command=("python", "-m", "tests.hosts.accepting", "{app}", "{fd}"),
    ),
    StartedHost(
        name="gunicorn",
        says="`gunicorn -k uvicorn_worker.UvicornWorker my_app:app`",
        command=GUNICORN,
        own={"local": "no caller is local: use `elicit pair`", "slow senders": SLOW},
    ),
    StartedHost(
        name="uvicorn, two workers",
        says="`uvicorn my_app:app --workers 2`",
        command=(*UVICORN, "--workers", "2"),
        own=NOTED,
    ),
    StartedHost(
        name="gunicorn, two workers",
        says="`gunicorn -w 2 -k uvicorn_worker.UvicornWorker my_app:app`",
        command=(*GUNICORN, "-w", "2"),
        own={"local": "no caller is local: use `elicit pair`", "slow senders": SLOW},
    ),
    StartedHost(
        name="Starlette",
        says='`Mount("/", app)`, `lifespan=app.lifespan`',
        command=UVICORN,
        app="in_starlette",
        own=NOTED,
    ),
    StartedHost(
        name="FastAPI, nginx forwards the path",
        says='`host.mount("/tools", app)`, with GZip, CORS and a middleware',
        command=UVICORN,
        app="in_fastapi",
        path="/tools",
        proxy="keeps",
        own={**NOTED, **RELAYED},
    ),
    StartedHost(
        name="FastAPI, nginx strips /apps",
        says='`host.mount("/tools", app)`, `--root-path /apps`, `ELICIT_URL=https://.../apps/tools`',
        command=(*UVICORN, "--root-path", "{root_path}"),
        app="in_fastapi",
        path="/apps/tools",
        proxy="takes off",
        taken="/apps",
        own={**NOTED, **RELAYED, "slow senders": "set `client_header_timeout` in nginx"},
    ),
    StartedHost(
        name="uvicorn, nginx strips the path",
        says="`uvicorn my_app:app --root-path /tools`",
        command=(*UVICORN, "--root-path", "{root_path}"),
        path="/tools",
        proxy="takes off",
        own={**NOTED, **RELAYED},
    ),
    StartedHost(
        name="Litestar",
        says='`asgi("/tools", is_mount=True, copy_scope=True)(app)`, `lifespan=[app.lifespan]`',
        command=UVICORN,
        app="in_litestar",
        path="/tools",
        own=NOTED,
    ),
)


def expected(host: Host, promise: str) -> Verdict:
    return Verdict.OWN if promise in host.own else Verdict.HOLDS


def rendered(hosts: Sequence[Host] = HOSTS) -> str:
    """Return the table as Markdown."""
    promises = [promise.name for promise in PROMISES]
    lines = [
        "| promise | what it is |",
        "|---|---|",
        *(f"| {promise.name} | {promise.says} |" for promise in PROMISES),
        "",
        f"| host | how | {' | '.join(promises)} |",
        f"|---|---|{'---|' * len(promises)}",
    ]
    for host in hosts:
        cells = [host.own.get(name, "holds") for name in promises]
        lines.append(f"| {host.name} | {host.says} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_table(text: str, table: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin
    assert end
    return before + begin + "\n" + table + "\n" + end + after
