"""The codes of errors: found in the code, so that none is missing, and told in the words of `error_texts`."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from docs.extension import error_texts
from docs.extension.error_texts import Told
from docs.extension.tables import code, table

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("responses_app", "engine")
STATUSES = {  # of what makes an error, where it says none itself
    **{"ApiError": 400, "invalid_request": 400, "forbidden": 403, "not_found": 404, "conflict": 409, "_no_answer": 409},
    **{"rate_limited": 429, "server_error": 500, "overloaded": 503},
}
# Where a `code` is an exit code, or Python.
SEPARATE = ("responses_app/command_line", "responses_app/extensions/containers/sandbox")
_CODE = re.compile(r"[a-z]+(_[a-z0-9]+)+")
_PARAMETERS = ("code", "error_code")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def requests() -> str:
    """Return the table of the codes that have a status."""
    rows = ((name, ", ".join(map(str, sorted(codes()[name]))), text) for name, text in error_texts.REQUESTS.items())
    return table(("code", "status", "when", "what to do"), ([code(name), status, *text] for name, status, text in rows))


def types() -> str:
    """Return the table of the types of errors."""
    return _table("type", error_texts.TYPES)


def in_responses() -> str:
    """Return the table of the codes of failed responses."""
    return _table("code", error_texts.RESPONSES)


def incomplete() -> str:
    """Return the table of the reasons of incomplete responses."""
    return _table("reason", error_texts.REASONS)


def in_steering() -> str:
    """Return the table of the codes of what is said to a running response."""
    return _table("code", error_texts.STEERING)


def in_images() -> str:
    """Return the table of the codes of images that were not made."""
    return _table("code", error_texts.IMAGES)


def in_files() -> str:
    """Return the table of the codes of files that could not be indexed."""
    return _table("code", error_texts.FILES)


def closes() -> str:
    """Return the table of the codes that a WebSocket is closed with."""
    return _table("close code", error_texts.CLOSES)


def _table(what: str, texts: Mapping[str, Told]) -> str:
    return table((what, "when", "what to do"), ([code(name), *text] for name, text in texts.items()))


@cache
def codes() -> Mapping[str, frozenset[int]]:
    """Return every code that the code makes, and the statuses it is told with: none where it has none."""
    modules = [
        ast.parse(path.read_text())
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not str(path.relative_to(ROOT)).startswith(SEPARATE)
    ]
    places = dict(place for module in modules for place in _takers(module))
    found: dict[str, set[int]] = {}
    for module in modules:
        for value, status in _values(module, places):
            for name in filter(_CODE.fullmatch, _strings(value)):
                found.setdefault(name, set()).update({status} if status else ())
    return {name: frozenset(statuses) for name, statuses in sorted(found.items())}


def _takers(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield who takes a code without its name, and as which of its arguments."""
    owners = {each: scope.name for scope in ast.walk(module) if isinstance(scope, ast.ClassDef) for each in scope.body}
    for node in ast.walk(module):
        if isinstance(node, Function):
            names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
            if "code" in names:
                name = owners[node] if node.name == "__init__" else node.name
                yield name, names.index("code") - (names[0] == "self")


def _values(module: ast.Module, places: Mapping[str, int]) -> Iterator[tuple[ast.AST, int]]:
    """Yield each expression that is a code, and the status beside it, 0 for none."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            callee = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            given = {each.arg: each.value for each in node.keywords}
            status = given.get("status")
            known = _number(status) or STATUSES.get(callee, 0)
            yield from ((given[name], known) for name in _PARAMETERS if name in given)
            if len(node.args) > places.get(callee, len(node.args)):
                yield node.args[places[callee]], 0
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            yield from ((value, 0) for key, value in pairs if key is not None and "code" in _strings(key))
        elif isinstance(node, Function):
            yield from ((value, 0) for name, value in _defaults(node) if name in _PARAMETERS)


def _defaults(function: Function) -> Iterator[tuple[str, ast.AST]]:
    of = function.args
    by_place = [*of.posonlyargs, *of.args]
    for argument, value in zip(by_place[len(by_place) - len(of.defaults) :], of.defaults, strict=True):
        yield argument.arg, value
    for argument, default in zip(of.kwonlyargs, of.kw_defaults, strict=True):
        if default is not None:
            yield argument.arg, default


def _number(node: ast.AST | None) -> int:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else 0


def _strings(node: ast.AST) -> list[str]:
    """Return the texts that an expression may be."""
    if isinstance(node, ast.IfExp):
        return [*_strings(node.body), *_strings(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
