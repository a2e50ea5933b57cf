"""The mistakes in the code of tools that the server finds before it starts.

Risks: `elicit.form` cannot show a field of the author's model class, and the error appears only at
the first call. The MCP library does not see the model classes that the body of a tool uses. The
server therefore reads the code of each tool without running it, and tries each model class that is
passed to `elicit.form` and defined outside of the function. If the server cannot read the code, the
first call reports the mistake.

The marks `gate` and `needs` work only on tools. Any other marked function asks nobody, and nothing
would report that. So the server refuses to start if the code of a tool calls a marked function that
is no tool, or if a resource or a prompt is marked.

The server also reports calls of async functions that silently ask nobody. The tool does not await
such a function, runs it in another event loop (`asyncio.run`), or runs it in a thread that does not
have the context of the call.
"""

import ast
import asyncio
import builtins
import inspect
import linecache
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from tokenize import TokenError
from types import FunctionType
from typing import Any, TypeAlias

from flows import elicit
from flows.elicitation.misuse import InvalidUse
from flows.errors import InvalidQuestion, NotAsked
from flows.kinds.form import form
from flows.kinds.gate import layers_of, mark_of, needs_of
from flows.kinds.secret import secret
from webapp.importing import is_authors
from webapp.mcp.before import servers_below
from webapp.mcp.tools import functions_without_tools, own_functions

_MISSING = object()


@dataclass(frozen=True, slots=True, eq=False)
class _LocalFunction:
    """A function defined in another function's body. Its object exists only once that body runs."""

    node: ast.FunctionDef | ast.AsyncFunctionDef


Seen: TypeAlias = set[_LocalFunction | FunctionType]


async def must_have_no_mistakes(server: Any) -> None:
    """Check the tools, resources and prompts of this server and of mounted servers.

    Raises:
        InvalidQuestion: A form cannot show a model class, a tool uses an `elicit` function or a
            marked function wrongly, or a resource or prompt is marked. The message has a line for
            each mistake.
    """
    servers = list(servers_below(server))
    ahead = [each for one in servers for each in await own_functions(one)]
    tools = {id(layer) for tool in ahead for layer in layers_of(tool)}
    others = [each for one in servers for each in await functions_without_tools(one)]
    wrong, seen = dict.fromkeys(filter(None, map(_mark_of_other_function, others))), set[int]()
    ahead += others
    while ahead:
        for layer in layers_of(ahead.pop()):
            if not isinstance(layer, FunctionType) or id(layer) in seen:
                continue
            seen.add(id(layer))
            called_as_tools = {*tools, *map(id, layers_of(layer))}
            for place, found, model in _names_in(layer):
                if model is None:
                    ahead.append(found)
                error = _error_of(found, model, caller=layer, tools=called_as_tools)
                if place and error:
                    wrong[f"{place}: {error}"] = None
    if wrong:
        raise InvalidQuestion("\n".join(wrong))


_YIELDS = (
    "The tool contains `yield`, so calling it runs none of its code. Return the value instead."
)


def must_return_no_awaitable(function: object, name: str, *, is_gathered: bool) -> None:
    """Check that `function` is no async generator `name`, and calls no function of this name.

    Raises:
        NotAsked: The function calls a function of this name.
        InvalidUse: The function is an async generator, which the library does not run.
    """
    if not isinstance(function, FunctionType):
        return
    file = function.__code__.co_filename
    short = file.replace("\\", "/").rpartition("/")[2]
    if name == function.__qualname__ and inspect.isasyncgenfunction(function):
        raise InvalidUse(_YIELDS, place=f"{short}:{function.__code__.co_firstlineno}")
    tree = _tree_of(function, file) if is_authors(file) else None
    if tree is None:
        return
    known = _names_outside(function, tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = _value(node.func, known)
        own = f"{function.__qualname__}.<locals>.{_name_of(node.func)}"
        names = [own if isinstance(called, _LocalFunction) else getattr(called, "__qualname__", "")]
        if called is asyncio.gather if is_gathered else name in names:
            error = NotAsked(f"{short}:{node.lineno}", verb=_name_of(node.func))
            error.place = error.places[0]
            raise error


_ASKS_NOBODY = (
    "`{}` is marked with gate or needs, but this line calls it as a plain function, so nobody is "
    "asked. Await the question itself here. If this line is in a decorator's wrapper, add "
    "`@functools.wraps(tool)` to the wrapper."
)


_NO_TOOL = (
    "`{}` is marked with gate or needs, but it is a resource or a prompt, so nobody is asked. Make "
    "it a tool, or remove the mark."
)


def _marks_of(function: Callable[..., Any]) -> set[str]:
    gate = mark_of(function)
    is_gated = gate is not None and not gate.is_off
    return {*(["gate"] if is_gated else []), *(["needs"] if needs_of(function) else [])}


def _mark_of_other_function(function: Callable[..., Any]) -> str | None:
    """Return the error of a marked resource or prompt, with its line, or None."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not _marks_of(function):
        return None
    return f"{code.co_filename}:{code.co_firstlineno}: {_NO_TOOL.format(code.co_name)}"


def _error_of(
    called: FunctionType, model: type[Any] | str | None, *, caller: FunctionType, tools: set[int]
) -> object:
    """Return the error of one call of an `elicit` function or a marked function, or None.

    A marked function may be called if its id is in `tools`, or if its `caller` has all its marks.
    """
    if isinstance(model, str):
        return model
    if model is None:
        is_tool = any(id(layer) in tools for layer in layers_of(called))
        is_asked = is_tool or _marks_of(called) <= _marks_of(caller)
        return None if is_asked else _ASKS_NOBODY.format(called.__name__)
    try:
        called("A question", model)
    except InvalidQuestion as error:
        return error
    except Exception:  # noqa: BLE001 - the author's own code, which the first call reports
        return None
    return None


def _names_in(
    function: FunctionType,
) -> Iterator[tuple[str | None, FunctionType, type[Any] | str | None]]:
    """Yield (place, used function, model class) for each function that this function's code uses.

    The place is None if the code names the used function without calling it. If the call is wrong,
    yield a sentence about the mistake instead of the model class. If the used function has no
    parameter for a model class, yield None instead.
    """
    file = function.__code__.co_filename
    tree = _tree_of(function, file) if is_authors(file) else None
    if tree is None:
        return
    known = _names_outside(function, tree)
    for line, sentence in _asking_nobody(tree, known):
        yield f"{file}:{line}", function, sentence
    for node in ast.walk(tree):
        verb, wrong = _wrong_verb_in(node, known)
        if verb is not None:
            yield f"{file}:{getattr(node, 'lineno', 0)}", verb, wrong.format(verb.__name__)
        if isinstance(node, ast.Call):
            called, place = _value(node.func, known), f"{file}:{node.lineno}"
            model = _value(_schema_in(node), known) if _is_verb(called) else None
            if isinstance(model, type):
                yield place, called, model
            elif isinstance(called, FunctionType) and called is not function:
                yield place, called, None
        elif isinstance(node, ast.Name | ast.Attribute):
            found = _value(node, known)
            if isinstance(found, FunctionType) and found is not function:
                yield None, found, None


_NEVER_AWAITED: tuple[Any, ...] = (
    elicit.caller,
    elicit.can,
    elicit.needed,
    elicit.read_token,
    elicit.token,
)
_QUESTIONS: tuple[Any, ...] = (
    *(elicit.api_key, elicit.confirm, elicit.form, elicit.oauth, elicit.payment, elicit.secret),
    *(elicit.together, elicit.url),
)
_AWAITED = "elicit.{} returns its value at once, so leave out `await`."
_TASK = (
    "create_task needs a coroutine, and elicit.{0} returns a question. Write "
    "asyncio.ensure_future(elicit.{0}(...)), or elicit.together(...) to ask several questions."
)


def _wrong_verb_in(node: ast.AST, known: Mapping[str, object]) -> tuple[Any, str]:
    """Return the verb that `node` calls wrongly and a sentence about it, or None and no text."""
    match node:
        case ast.Await(value=ast.Call(func=func)):
            verbs, sentence = _NEVER_AWAITED, _AWAITED
        case ast.Call(func=ast.Attribute(attr="create_task"), args=[ast.Call(func=func), *_]):
            verbs, sentence = _QUESTIONS, _TASK
        case _:
            return None, ""
    found = _value(func, known)  # compared by identity: `==` would run an author's code
    return next((one for one in verbs if one is found), None), sentence


_IN_ANOTHER_LOOP = (
    "`{0}` runs this coroutine in another event loop, where nobody can be asked. Await the "
    "coroutine in the tool. A plain `def` tool cannot await: mark it with @elicit.needs(question)."
)
_IN_A_THREAD = (
    "`{0}` runs this function in a thread outside of the call, where nobody can be asked. Await "
    "the question in the tool, and pass its answer to the function."
)
_NEVER_RUN = (
    "`{0}` is async and this line does not await it, so nobody is asked. Write `await {0}(...)`."
)
_ASKING: tuple[Any, ...] = (*_QUESTIONS, elicit.once, elicit.forget, elicit.on_end)
# The attributes of a coroutine itself: reading one of them needs no `await`.
_OF_COROUTINES = frozenset(dir(Coroutine))
_NEEDS_VALUE = (ast.Compare, ast.BinOp, ast.UnaryOp, ast.FormattedValue, ast.Expr)


def _asking_nobody(tree: ast.AST, known: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """Yield the line of each call that should ask a person and cannot, and a sentence about it."""
    above = {id(below): node for node in ast.walk(tree) for below in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name, called = _name_of(node.func), _value(node.func, known)
        if _runs_in_loop(node, name, called) and _asks(node.args[0], known):
            yield node.lineno, _IN_ANOTHER_LOOP.format(name)
        elif (work := _work_of_thread(node, name, called)) is not None:
            if called is threading.Thread:
                is_lost = _is_async(_value(work, known))
            else:
                # The function may return a question, which the tool can await after the thread.
                around = above[id(node)]
                result = around if isinstance(around, ast.Await) else node
                is_lost = _is_used_unawaited(result, above, tree)
            if is_lost and _asks(work, known):
                yield node.lineno, _IN_A_THREAD.format(name)
        elif _is_async(called) and _is_used_unawaited(node, above, tree) and _asks(node, known):
            yield node.lineno, _NEVER_RUN.format(name)


def _name_of(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _runs_in_loop(call: ast.Call, name: str, called: object) -> bool:
    # nest_asyncio lets a coroutine run in the loop that already runs.
    is_run = called is asyncio.run or name.endswith(".run_until_complete")
    return is_run and len(call.args) > 0 and "nest_asyncio" not in sys.modules


def _work_of_thread(call: ast.Call, name: str, called: object) -> ast.expr | None:
    if name.endswith(".run_in_executor") and len(call.args) > 1:
        return call.args[1]
    targets = [each.value for each in call.keywords if each.arg == "target"]
    return targets[0] if called is threading.Thread and targets else None


def _is_async(called: object) -> bool:
    """Return True for an async function that runs only when its result is awaited."""
    if isinstance(called, _LocalFunction):
        yields = (ast.Yield, ast.YieldFrom)
        node = called.node
        is_plain = not node.decorator_list and not any(
            isinstance(n, yields) for n in ast.walk(node)
        )
        return is_plain and isinstance(node, ast.AsyncFunctionDef)
    return isinstance(called, FunctionType) and inspect.iscoroutinefunction(called)


def _asks(node: ast.AST, known: Mapping[str, object], seen: Seen | None = None) -> bool:
    """Return True if this expression, or a function that it uses, needs the current tool call."""
    seen = set() if seen is None else seen
    is_named = isinstance(node, ast.Name | ast.Attribute)
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    found = [_value(each, known) for each in ([node] if is_named else calls)]
    if any(getattr(each, "__module__", None) == "webapp.coroutines" for each in found):
        return False  # an `asking` block names the person to ask, and needs no call
    return any(_asks_itself(each, known, seen) for each in found)


def _asks_itself(found: object, known: Mapping[str, object], seen: Seen) -> bool:
    if any(found is one for one in _ASKING):
        return True
    if not isinstance(found, _LocalFunction | FunctionType) or found in seen:
        return False
    seen.add(found)
    if isinstance(found, _LocalFunction):
        return _asks(found.node, known, seen)
    file = found.__code__.co_filename
    tree = _tree_of(found, file) if is_authors(file) else None
    return tree is not None and _asks(tree, _names_outside(found, tree), seen)


def _is_used_unawaited(node: ast.AST, above: Mapping[int, ast.AST], tree: ast.AST) -> bool:
    """Return True if the awaitable that `node` returns is dropped, or used like a plain value."""
    match above[id(node)]:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            uses = [one for one in ast.walk(tree) if isinstance(one, ast.Name) and one.id == name]
            read = [one for one in uses if isinstance(one.ctx, ast.Load)]
            is_alone = len(uses) == len(read) + 1 and not _is_bound_elsewhere(name, tree)
            return is_alone and all(_needs_value(one, above[id(one)]) for one in read)
        case around:
            return _needs_value(node, around)


def _is_bound_elsewhere(name: str, tree: ast.AST) -> bool:
    """Return True if another scope may read or write this name."""
    for node in ast.walk(tree):
        match node:
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                if name in names:
                    return True
            case ast.arg(arg=other) if other == name:
                return True
            case _:
                pass
    return False


def _needs_value(node: ast.AST, around: ast.AST) -> bool:
    """Return True if the code around `node` needs a plain value and cannot use an awaitable."""
    match around:
        case ast.Attribute(attr=attr):
            return attr not in _OF_COROUTINES
        case ast.Subscript(value=used) | ast.For(iter=used):
            return used is node
        case ast.If(test=used) | ast.IfExp(test=used) | ast.While(test=used):
            return used is node
        case ast.Call(func=ast.Name(id="str" | "int" | "float" | "bool" | "len" | "list" | "dict")):
            return True
        case _:
            return isinstance(around, _NEEDS_VALUE)


def _tree_of(function: FunctionType, file: str) -> ast.AST | None:
    """Parse the lines of this function, and not the rest of its file."""
    code = function.__code__
    lines = linecache.getlines(file, function.__globals__)[code.co_firstlineno - 1 :]
    if not lines:
        return None
    # An indented function can contain lines without indentation, so put a block around it.
    is_indented = lines[0][:1].isspace()
    try:
        block = "".join(inspect.getblock(lines))
        tree: ast.AST = ast.parse(f"if True:\n{block}" if is_indented else block)
    except (SyntaxError, ValueError, RecursionError, TokenError):  # not the function's source
        return None
    ast.increment_lineno(tree, code.co_firstlineno - 1 - is_indented)
    return next((node for node in ast.walk(tree) if _has_name(node, code.co_name)), None)


def _has_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name


def _is_verb(found: object) -> bool:
    return found is form or found is secret


def _names_outside(function: FunctionType, tree: ast.AST) -> Mapping[str, object]:
    """Return the values of the names that a function reads and does not bind itself."""
    bound, local = Counter[str](), dict[str, object]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                bound[name] += 1
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                bound[name] += 1
                if node is not tree:
                    local[name] = _LocalFunction(node)
            case ast.ClassDef(name=name):
                bound[name] += 1
            case ast.ExceptHandler(name=str(name)):
                bound[name] += 1
            case ast.alias(name=name, asname=other):
                bound[other or name.partition(".")[0]] += 1
            case _:
                pass
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    around = {name: _content(cell) for name, cell in cells}
    known = {**vars(builtins), **function.__globals__, **around}
    outside = {name: value for name, value in known.items() if name not in bound}
    return {**outside, **{name: one for name, one in local.items() if bound[name] == 1}}


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _MISSING


def _schema_in(call: ast.Call) -> ast.expr | None:
    """Return the argument `schema` of a call of `form` or `secret`."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    second = call.args[1] if len(call.args) > 1 else None
    return named.get("schema", second)


def _value(node: ast.AST | None, known: Mapping[str, object]) -> Any:
    """Return the value of a name or of a dotted name, without running an author's code."""
    match node:
        case ast.Name(id=name):
            return known.get(name, _MISSING)
        case ast.Attribute(value=inner, attr=name):
            # Only names in modules and classes: an attribute of another object may run code.
            owner = _value(inner, known)
            names = getattr(owner, "__dict__", {}) if _has_plain_names(owner) else {}
            return names.get(name, _MISSING)
        case _:
            return _MISSING


def _has_plain_names(owner: object) -> bool:
    return isinstance(owner, type) or type(owner).__name__ == "module"
