"""The codes of errors, by where the code makes them: so none is missing here, and none is here that is gone.

What is said of one is the first line of the docstring of the function that makes it, or of its class; of one that is
made in the middle of something it is its message, with an ellipsis for what is only known then.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from docs.extension.tables import code, table

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("responses_app", "engine")
STATUSES = {  # of what makes an error, where it says none itself
    **{"ApiError": 400, "invalid_request": 400, "conflict": 409},
    **{"rate_limited": 429, "server_error": 500, "overloaded": 503},
}
IN_AN_ITEM = "in an item, or a response"
MAX_TEXTS = 3
_STATUS = re.compile(r" ?\(\d{3}\)")  # in a docstring: it has a column of its own
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Code:
    """A code: its statuses, and what is said of it."""

    statuses: set[int] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)

    def add(self, status: int, text: str) -> None:
        """Note one place where it is told; 0 where it has no status."""
        self.statuses |= {status} if status else set()
        if text and text not in self.texts:
            self.texts.append(text)


def markdown() -> str:
    """Return the table of the codes."""
    return table(("code", "status", "when, or what is told"), (_row(name, each) for name, each in codes().items()))


@cache
def codes() -> dict[str, Code]:
    """Return every code that an error can have, by name."""
    found: dict[str, Code] = {}
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        for name, status, text in _errors_of(ast.parse(path.read_text())):
            found.setdefault(name, Code()).add(status, text)
    return dict(sorted(found.items()))


def _row(name: str, found: Code) -> tuple[str, str, str]:
    more = [f"and {len(found.texts) - MAX_TEXTS} more"] if len(found.texts) > MAX_TEXTS else []
    texts = "; ".join([*(text.removesuffix(".") for text in found.texts[:MAX_TEXTS]), *more])
    return code(name), ", ".join(map(str, sorted(found.statuses))) or IN_AN_ITEM, texts


def _errors_of(module: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yield code, status (0 for none) and what is said, of each error that a module makes."""
    scopes: dict[ast.AST, Scope] = {}
    for scope in ast.walk(module):
        if isinstance(scope, Scope):
            scopes.update(dict.fromkeys(ast.walk(scope), scope))  # the innermost comes last
    texts = _assigned(module)
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            given: dict[object, ast.AST] = {each.arg: each.value for each in node.keywords}
            message = node.args[0] if node.args else given.get("message")
            status = _status(node, given.get("status"))
        elif isinstance(node, ast.Dict):
            given = {_string(key): value for key, value in zip(node.keys, node.values, strict=True) if key is not None}
            message, status = given.get("message"), 0
            if message is None:
                continue
        else:
            continue
        if isinstance(message, ast.Name):
            message = _assigned(scopes.get(node, module)).get(message.id) or texts.get(message.id)
        if name := _string(given.get("code")):
            yield name, status, _said(message, scopes.get(node), scopes)


def _assigned(scope: ast.AST) -> dict[str, ast.AST]:
    """Return what names are given in a module, or in a function."""
    return {
        target.id: node.value
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _status(call: ast.Call, given: ast.AST | None) -> int:
    if isinstance(given, ast.Constant) and isinstance(given.value, int):
        return given.value
    callee = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    return STATUSES.get(callee, 0)


def _said(message: ast.AST | None, scope: Scope | None, scopes: dict[ast.AST, Scope]) -> str:
    if scope is not None and scope.name == "__init__":
        scope = next((each for each in scopes.values() if isinstance(each, ast.ClassDef) and scope in each.body), scope)
    about = _STATUS.sub("", (ast.get_docstring(scope) or "").partition("\n")[0]) if scope is not None else ""
    template = _template(message) if message is not None else ""
    return about if about and (_makes_errors(scope) or not template.strip("….")) else code(template.replace("`", "'"))


def _makes_errors(scope: Scope | None) -> bool:
    """Whether a function is there for one error, or a class is one: then its docstring is about that."""
    if isinstance(scope, ast.ClassDef):
        return True
    return scope is not None and isinstance(scope.returns, ast.Name) and scope.returns.id == "ApiError"


def _string(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _template(node: ast.AST) -> str:
    """Return the text that an expression makes, with an ellipsis for what is only known when it is told."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else "…"
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_template, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left) + _template(node.right)
    return "…"
