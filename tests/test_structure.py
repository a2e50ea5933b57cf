"""The project's rules, checked on the syntax trees: allowed imports, names and calls of modules."""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent


@cache
def parsed(path: str) -> ast.Module:
    return ast.parse((PROJECT / path).read_text("utf-8"))


@pytest.fixture(autouse=True, scope="module")
def _forget_trees() -> Iterator[None]:
    """Free the syntax trees. Otherwise they slow down each garbage collection in later tests."""
    yield
    parsed.cache_clear()


class Trees(Mapping[str, ast.Module]):
    """The syntax trees of modules by path. A test that reads a tree parses the module."""

    def __init__(self, *folders: str) -> None:
        files = [file for folder in folders for file in sorted((PROJECT / folder).rglob("*.py"))]
        self._paths = dict.fromkeys(
            file.relative_to(PROJECT).as_posix()
            for file in files
            if "node_modules" not in file.parts
        )

    def __getitem__(self, path: str) -> ast.Module:
        if path not in self._paths:
            raise KeyError(path)
        return parsed(path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


SOURCES = Trees("flows", "webapp")
TESTS = Trees("tests")
CONCRETE_STORES = tuple(f"webapp.stores.{name}" for name in ("postgres", "sqlite", "valkey"))
SERVERS = ("webapp", "litestar", "mcp", "mcp_types", "fastmcp", "uvicorn")
OUTSIDE = ("redis", "sqlite3", "os", "socket", "time", "pathlib", "subprocess")
MUST_NOT_IMPORT = {
    "flows": (*SERVERS, *OUTSIDE),
    "flows.elicit": ("flows.providers",),
    "webapp.routes": ("webapp.mcp", *CONCRETE_STORES),
    "webapp.api": ("webapp.mcp", *CONCRETE_STORES),
    "webapp.mcp": ("webapp.routes", "webapp.api", *CONCRETE_STORES),
    # Any program can import the client, so it must import little.
    "webapp.client": ("litestar", "mcp", "sqlite3", "starlette", "webapp.stores"),
}
# A package imports only from packages before it. docs/explanation/architecture.md describes each.
PACKAGES = (
    *(
        f"flows.{package}"
        for package in (
            *("errors", "origin", "shown", "elicitation", "question", "oauth", "webhooks"),
            *("providers", "payments", "requests", "schema", "kinds", "hooks", "elicit", "crypto"),
        )
    ),
    "flows",
    *(
        f"webapp.{package}"
        for package in (
            *(
                "limits",
                "printing",
                "importing",
                "languages",
                "prices",
                "telemetry",
                "logs",
                "stores",
            ),
            *("deadline", "http"),
            *("records", "elicitations", "events", "notifications"),
            *("oauth", "payments", "identity"),
            *("sandbox", "settings", "kinds", "completion", "calls", "client", "service"),
            *("collector", "coroutines", "sweeper"),
            *("connecting", "command", "operations"),
            *(
                "pages",
                "mcp",
                "server",
                "routes",
                "api",
                "workers",
                "app",
                "serving",
                "demo",
                "testing",
            ),
            "cli",
        )
    ),
    "webapp",
)
# A vendor's name may occur only in these packages, and in texts for people.
VENDOR_FOLDERS = (
    *(f"flows/payments/{package}/" for package in ("stripe", "paypal", "mollie")),
    *(f"webapp/sandbox/{package}/" for package in ("authorization", "stripe", "paypal")),
    *("flows/providers/", "webapp/demo/"),
    *("webapp/sandbox/app.py", "webapp/sandbox/mollie.py"),  # the simulated vendors
    "webapp/sandbox/settings.py",  # the secrets of each vendor
    "flows/payments/registry.py",  # which gateway belongs to which vendor
    "webapp/settings/payments.py",  # the settings of each vendor
    "webapp/settings/config_file.py",  # a former name in elicit.toml
    "webapp/pages/views_own.py",  # how each client adds this server
    "webapp/printing.py",  # the names of terminals
)
VENDORS = re.compile(
    "adyen|atlassian|claude|coinbase|digicert|discord|dropbox|github|gitlab|google|lemon|linear|"
    "microsoft|mollie|notion|openai|paddle|paypal|polar|razorpay|slack|square|stripe|vscode"
)
VAGUE = {"utils", "helpers", "common", "base", "manager", "context", "data"}
WALL_CLOCKS = {
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
    "time.time",
    "time.time_ns",
}
CLIENTS_AND_LOOPS = {
    "httpx.Client",
    "httpx.AsyncClient",
    "httpx.HTTPTransport",
    "httpx.AsyncHTTPTransport",
    "httpx.request",
    "httpx.stream",
    "httpx.get",
    "httpx.post",
    "asyncio.new_event_loop",
    "asyncio.get_event_loop",
    "asyncio.run",
    "asyncio.create_task",
}


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module_of(path) for path in SOURCES}


def belongs_to(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@cache
def imports(path: str) -> tuple[str, ...]:
    """Return every module that a file imports anywhere, `from a import b` as both a and a.b."""
    return tuple(_imports(path))


def _imports(path: str) -> Iterator[str]:
    package = path.split("/")[:-1]
    for node in ast.walk(SOURCES[path]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a module is imported: everything except the bodies of functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from at_import(child)


def dotted(node: ast.AST) -> str:
    """Return the last two names of `a.b.c`, so that datetime.datetime.now becomes datetime.now."""
    return ".".join(ast.unparse(node).split(".")[-2:]) if isinstance(node, ast.Attribute) else ""


def named_in(node: ast.AST) -> Iterator[str]:
    """Yield the names and the string constants of a node, except strings with spaces."""
    for name in ("id", "attr", "arg", "name", "asname", "module"):
        yield str(getattr(node, name, None) or "").lower()
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        text = str(node.value).lower()
        yield "" if " " in text.strip() else text


def package_of(module: str) -> str:
    named = ".".join(module.split(".")[:2])
    return named if named in PACKAGES else module.split(".", maxsplit=1)[0]


@cache
def imported_modules(path: str) -> set[str]:
    """Return the project's modules that a file imports, including those only for type checking."""
    found = {imported for imported in imports(path) if imported in MODULES} - {module_of(path)}
    return {one for one in found if not any(belongs_to(other, one) for other in found - {one})}


def _packages_in(text: str) -> Iterator[tuple[str, str]]:
    half = ""
    for line in text.splitlines():
        if line.startswith("## The packages of "):
            half = line.rsplit(" ", 1)[1]
        elif line.startswith("## "):
            half = ""
        elif half and line.startswith("| `"):
            yield from ((half, package) for package in re.findall(r"`(\w+)`", line.split("|")[1]))


def test_modules_do_not_import_forbidden_modules() -> None:
    wrong = [
        f"{path} imports {imported}"
        for path in SOURCES
        for place, forbidden in MUST_NOT_IMPORT.items()
        if belongs_to(module_of(path), place)
        for imported in imports(path)
        if any(belongs_to(imported, name) for name in forbidden)
    ]
    assert not wrong


def test_every_module_belongs_to_a_known_package() -> None:
    assert {package_of(module_of(path)) for path in SOURCES} == set(PACKAGES)


def test_packages_import_downward_only() -> None:
    wrong = [
        f"{path} imports {imported}"
        for path in SOURCES
        for imported in imported_modules(path)
        if PACKAGES.index(package_of(imported)) > PACKAGES.index(package_of(module_of(path)))
    ]
    assert not wrong


def test_imports_have_no_cycle() -> None:
    TopologicalSorter({module_of(path): imported_modules(path) for path in SOURCES}).prepare()


def test_every_package_docstring_explains_its_design() -> None:
    for path, tree in SOURCES.items():
        if path.endswith("/__init__.py") and path.count("/") == 2:
            theory = ast.get_docstring(tree) or ""
            assert theory.count("\n\n") >= 1, path


def test_no_module_has_more_than_500_lines() -> None:
    assert {
        path for path in SOURCES if len((PROJECT / path).read_text("utf-8").splitlines()) > 500
    } == set()


# Short files that only one other file of their folder uses, and why they stay separate.
ALONE: dict[str, str] = {}
# Folders whose files are alike: declarations, commands, presenters, stores.
ONE_OF_MANY = (
    *("flows/providers/", "webapp/cli/", "webapp/mcp/presenters/"),
    *("webapp/routes/", "webapp/stores/"),
)


def test_small_module_with_single_user_is_listed_with_reason() -> None:
    users: dict[str, set[str]] = {path: set() for path in SOURCES}
    for path in SOURCES:
        for module in imported_modules(path):
            name = module.replace(".", "/")
            users[f"{name}.py" if f"{name}.py" in SOURCES else f"{name}/__init__.py"].add(path)
    short = {
        path
        for path, by in users.items()
        if [user.rpartition("/")[0] for user in by] == [path.rpartition("/")[0]]
        and len((PROJECT / path).read_text("utf-8").splitlines()) < 80
        and not path.startswith(ONE_OF_MANY)
    }
    assert short == set(ALONE)


def test_architecture_page_names_every_package() -> None:
    text = (PROJECT / "docs" / "explanation" / "architecture.md").read_text("utf-8")
    reported = {f"{half}.{package}" for half, package in _packages_in(text)}
    assert reported | {"flows", "webapp"} == set(PACKAGES)
    layers = re.findall(r"^\| .* \| in `(\w+)`: (.*) \|$", text, re.MULTILINE)
    overview = [
        f"{half}.{package}" for half, packages in layers for package in packages.split(", ")
    ]
    assert overview == [package for package in PACKAGES if "." in package]
    for path in re.findall(r"`((?:flows|webapp)/[\w/]+\.py)`", text):
        assert path in SOURCES, path


def test_sandbox_is_imported_only_by_its_servers() -> None:
    serves = {
        "webapp/serving/http_server.py": "webapp.sandbox",
        "webapp/serving/supervising.py": "webapp.sandbox.settings",
        "webapp/app.py": "webapp.sandbox.settings",
    }
    serves["webapp/settings/sandboxed.py"] = serves["webapp/app.py"]
    serves["webapp/app.py"] = "webapp.sandbox"
    kit = [
        f"webapp/testing/{name}.py" for name in ("_acts", "_application", "in_process", "webhooks")
    ]
    serves |= dict.fromkeys(kit, "webapp.sandbox")
    wrong = [
        f"{path} imports {imported}"
        for path in SOURCES
        if not path.startswith("webapp/sandbox/")
        for imported in imports(path)
        if belongs_to(imported, "webapp.sandbox") and imported != "webapp.sandbox"
        if path not in serves or not belongs_to(imported, serves[path])
    ]
    assert not wrong


def test_flows_creates_no_clients_loops_or_files() -> None:
    wrong = [
        f"{path}:{node.lineno} calls {ast.unparse(node.func)}"
        for path, tree in SOURCES.items()
        if path.startswith("flows/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (dotted(node.func) in CLIENTS_AND_LOOPS or ast.unparse(node.func) == "open")
    ]
    assert not wrong


def test_importing_a_module_starts_no_client_and_no_loop() -> None:
    wrong = [
        f"{path}:{node.lineno} calls {ast.unparse(node.func)}"
        for path, tree in SOURCES.items()
        for node in at_import(tree)
        if isinstance(node, ast.Call) and dotted(node.func) in CLIENTS_AND_LOOPS
    ]
    assert not wrong


def test_only_outermost_module_reads_the_clock() -> None:
    wrong = [
        f"{path}:{node.lineno} reads {ast.unparse(node)}"
        for path, tree in SOURCES.items()
        if path != "webapp/connecting.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and dotted(node) in WALL_CLOCKS
    ]
    assert not wrong


def test_every_module_has_a_docstring_and_no_vague_name() -> None:
    silent = [path for path, tree in SOURCES.items() if not ast.get_docstring(tree)]
    vague = [path for path in SOURCES if VAGUE & set(module_of(path).split("."))]
    assert not silent + vague


def test_public_names_are_sorted_with_constants_first() -> None:
    for node in SOURCES.get("flows/__init__.py", ast.Module([], [])).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
            assert list(names) == sorted(
                set(names), key=lambda name: (not name.isupper(), not name[0].isupper(), name)
            )


def test_dependencies_have_an_upper_version_bound() -> None:
    # finding: H4
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["fastmcp"]]
    unbounded = {each.partition(">=")[0] for each in wanted if "<" not in each.partition(";")[0]}
    # These need no bound: many packages depend on them, and no new version has broken us.
    assert unbounded == {"certifi", "cryptography", "psutil"}
    assert all(">=" in each for each in wanted)


def test_runtime_pins_are_among_other_pins_and_have_hashes() -> None:
    run, *others = (
        (PROJECT / name).read_text("utf-8").replace("\\\n", "").splitlines()
        for name in ("constraints.txt", "constraints-dev.txt", "constraints-docs.txt")
    )
    for lines in others:
        # Ignore the platforms of a pin: tests can need it on more platforms than the server.
        few, many = ({re.sub(r" ; .*?(?= +--hash)", "", pin) for pin in of} for of in (run, lines))
        assert few < many
        assert all(re.search(r"==\S+ .*--hash=sha256:[0-9a-f]{64}", line) for line in lines)
        assert not any("/" in line for line in lines)


def test_every_test_named_in_a_document_exists() -> None:
    named = [
        found
        for document in (PROJECT / "docs").rglob("*.md")
        for found in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", document.read_text("utf-8"))
    ]
    assert named
    for path, name in named:
        assert f"def {name}(" in (PROJECT / path).read_text("utf-8"), f"{path}::{name}"


def test_vendor_names_occur_only_in_vendor_packages() -> None:
    wrong = [
        f"{path}:{getattr(node, 'lineno', '')} names {name}"
        for path, tree in SOURCES.items()
        if not path.startswith(VENDOR_FOLDERS)
        for node in ast.walk(tree)
        for name in named_in(node)
        if VENDORS.search(name)
    ]
    assert not wrong


def test_public_class_names_are_unique() -> None:
    where: dict[str, list[str]] = {}
    for path, tree in SOURCES.items():
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


# The modules that verify each kind of proof. `completion` is for trusted code.
PROOFS_ARE_MADE_IN = {
    "Exchanged": {"webapp/oauth/code_exchange.py"},
    "ConnectedBefore": {"webapp/oauth/code_exchange.py", "webapp/oauth/accounts.py"},
    # `usable_again` answers a second question with an already verified payment.
    "PaidSession": {"webapp/payments/verification.py", "webapp/payments/usable_again.py"},
    "OnPage": {"webapp/routes/links.py", "webapp/routes/redirect.py"},
    "InClient": {"webapp/mcp/forms.py"},
    "TrustedCode": {"webapp/completion.py"},
    "NamedByAuthor": {"webapp/completion.py"},
    "ByModel": {"webapp/mcp/result_tool.py"},
    "ApprovedByKey": {"webapp/api/questions.py"},
    "ByApprover": {"webapp/kinds/decision.py"},
}


def test_proofs_are_created_only_where_they_are_verified() -> None:
    # finding: C1
    made: dict[str, set[str]] = {}
    for path, tree in SOURCES.items():
        for node in ast.walk(tree):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name in PROOFS_ARE_MADE_IN:
                made.setdefault(name, set()).add(path)
    assert made == PROOFS_ARE_MADE_IN
    here = ast.walk(SOURCES["flows/elicitation/traits.py"])
    declared = {node.name for node in here if isinstance(node, ast.ClassDef)}
    others = {"Proof", "Decider", "Traits", "_Declared"}
    assert declared - others == set(PROOFS_ARE_MADE_IN)


def test_answers_are_accepted_in_a_single_module() -> None:
    # finding: C1
    doors = {
        path
        for path, tree in SOURCES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("elicitations.end_by")
    }
    assert doors == {"webapp/elicitations/complete.py"}


def test_code_does_not_compare_kinds_by_name() -> None:
    # A kind's own package may compare an elicitation's kind.
    own = (
        *("flows/payments/", "webapp/oauth/", "webapp/payments/", "webapp/routes/callbacks.py"),
        *("webapp/cli/", "webapp/operations/"),
    )
    kinds = {"url", "oauth", "payment", "secret", "form", "confirm", "gate", "decision"}
    reported = [
        f"{path}:{node.lineno}"
        for path, tree in SOURCES.items()
        if not path.startswith(own)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith(".kind")
        for other in ast.walk(node)
        if isinstance(other, ast.Constant) and other.value in kinds
        if ast.unparse(node.left) not in ("revocation.kind", "field.kind", "self.kind")
    ]
    assert reported == []


def test_no_test_module_imports_another() -> None:
    modules = {module_of(path) for path in TESTS if path.split("/")[-1].startswith("test_")}
    named_in_a_text = re.compile("|".join(rf"\b{name.split('.')[-1]}\b" for name in modules))
    for path in TESTS:
        if not named_in_a_text.search((PROJECT / path).read_text("utf-8")):
            continue  # parsing every module would take several seconds
        for node in ast.walk(TESTS[path]):
            if isinstance(node, ast.ImportFrom):
                named = {str(node.module), *(f"{node.module}.{one.name}" for one in node.names)}
                assert not named & modules, f"{path}:{node.lineno}: put it into tests/support"


def test_test_folders_are_named_like_packages() -> None:
    for half in ("flows", "webapp"):
        packages = {path.parent.name for path in (PROJECT / half).glob("*/__init__.py")}
        folders = {path.parent.name for path in (PROJECT / "tests" / half).glob("*/__init__.py")}
        assert folders <= packages


# Former names of this project for things that have a standard name. See the glossary of
# docs/explanation/architecture.md.
FORMER_NAMES = {
    *("Line", "Place", "Bodies", "Body", "Wire", "Wires", "Shown", "Group", "Part", "Taken"),
    *("Take", "lay_down", "Handed", "Binding", "Codes", "Trip", "Arrival", "Seller"),
    *("Registration", "Verdict", "Hint", "News", "Reach", "Served", "Kind", "letters", "judge"),
    *("stand", "verdicts", "loose_ends", "give_back", "given_back", "taken_back", "afterwards"),
    *("Stage", "Town", "Fair", "Market", "Till", "Nursery", "town", "fair", "market", "nursery"),
}
# The same for attributes, parameters and variables in flows and webapp. This list has no names that
# are standard terms, such as `wire`, or columns of the store, such as `hooks`.
FORMER_IDENTIFIERS = {
    *("nobodys", "hearers", "telling", "its_bytes", "Way", "Opening", "wires", "loose_ends"),
    *("kept_until", "made_way", "heed", "verdicts", "trip", "registrations", "is_over", "came"),
    *("park", "pictures", "bodies", "followed", "missed", "kept_from_answer", "has_made_way"),
    *("room", "has_room", "room_in", "SessionRoom", "Keeping", "house"),
}
FORMER_MODULES = {
    *("line", "body", "bodies", "wire", "wires", "letters", "departures", "grants", "news"),
    *("account_keys", "registrations", "verdicts", "afterwards", "erased", "hints", "loose_ends"),
    *("kept_news", "inbox", "protected", "reach", "served", "serving_pages", "typed", "tries"),
    *("asked_forms", "kept_secrets", "recent", "kind", "stage", "town", "fair", "market", "stand"),
    *("till", "nursery", "asked_models", "keeping", "small_courtesies"),
}


def test_former_names_are_not_used_again() -> None:
    for path in (*SOURCES, *TESTS):
        if not path.startswith("tests/mutation/"):  # where reach is a standard term
            name = path.split("/")[-1].removesuffix(".py").removeprefix("test_")
            assert name not in FORMER_MODULES
        if path.startswith(("flows/", "webapp/", "tests/support/")):
            named = {
                node.name.lstrip("_")
                for node in ast.walk(parsed(path))
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert not named & FORMER_NAMES, path
        if path.startswith(("flows/", "webapp/")):
            assert not identifiers_of(parsed(path)) & FORMER_IDENTIFIERS, path


def identifiers_of(tree: ast.AST) -> set[str]:
    names = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                names.add(name.lstrip("_"))
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.add(name.lstrip("_"))
            case ast.AsyncFunctionDef(name=name):
                names.add(name.lstrip("_"))
            case _:
                pass
    return names
