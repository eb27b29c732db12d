"""`make house`: how the code is built, in figures. Files are parsed and nothing is run; tests are counted alone.

`budgets` has those that are bound.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
PACKAGES = ("engine", "responses_app", "respsite")
CHECKS = ("tests", "bench")
NOT_CODE = ("migrations", "docs_site")  # folders that are made, not written
LONG_FUNCTION, LONG_FILE, MAX_FILE = 50, 400, 600
OF_DJANGO = {"Command", "Meta"}

Graph = Mapping[str, set[str]]
Row = tuple[str, str]


@dataclass(frozen=True)
class Module:
    """One file of ours."""

    name: str
    path: Path
    text: str

    @property
    def folder(self) -> str:
        """The folder that it lives in, as a package."""
        return ".".join(self.path.relative_to(ROOT).parent.parts)

    @property
    def room(self) -> str:
        """The room that it is in: the folder that has a floor, see `tests/project/test_architecture.py`.

        Of resources, which reach through all floors, the files of one name are a room.
        """
        parts = self.path.relative_to(ROOT).parent.parts
        if parts[:2] == ("responses_app", "resources"):
            return f"resources.{self.path.stem}"
        return parts[1] if len(parts) > 1 and parts[0] == "responses_app" else parts[0]

    @cached_property
    def lines(self) -> int:
        """All its lines, empty ones too."""
        return self.text.count("\n")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))


class House:
    """The modules of some packages, and who imports whom."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = {module.name: module for module in modules}

    @cached_property
    def imports(self) -> Graph:
        """The modules that each module imports, at its top or inside a function."""
        return {name: set(self._imported(module)) - {name} for name, module in self.modules.items()}

    @cached_property
    def rooms(self) -> Graph:
        """The rooms that each room imports from; the version, which everybody may know, stands in none."""
        graph: dict[str, set[str]] = {}
        for name, imported in self.imports.items():
            here = self.modules[name].room
            known = {self.modules[each].room for each in imported if each not in PACKAGES}
            graph.setdefault(here, set()).update(known - {here})
        return graph

    @cached_property
    def sizes(self) -> Counter[str]:
        """How many modules lie flat in each folder; one that is empty, or only says what the package is, is none."""
        return Counter(module.folder for module in self.modules.values() if not _is_empty(module))

    def _imported(self, module: Module) -> Iterator[str]:
        for node in module.nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if self._is_kept(alias.name))
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    name = whole if whole in self.modules else node.module
                    if self._is_kept(name):
                        yield name

    def _is_kept(self, name: str) -> bool:
        return name in self.modules and not _is_empty(self.modules[name])


def read(*packages: str) -> House:
    """Read packages, but for what is not written by hand."""
    return House(
        Module(_name_of(path), path, path.read_text())
        for package in packages
        for path in sorted((ROOT / package).rglob("*.py"))
        if not set(path.relative_to(ROOT).parts) & set(NOT_CODE)
    )


def _name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_empty(module: Module) -> bool:
    """Whether a module is an `__init__` without code."""
    return module.path.name == "__init__.py" and all(isinstance(node, ast.Expr) for node in module.tree.body)


def longest_path(graph: Graph) -> list[str]:
    """Return the longest way down a graph. A circle counts as one step: what leads back into it is passed over."""
    part_of = {name: number for number, part in enumerate(parts(graph)) for name in part}
    below: dict[int, set[int]] = defaultdict(set)
    named: dict[int, str] = {}
    for name, targets in graph.items():
        named.setdefault(part_of[name], name)
        below[part_of[name]] |= {part_of[each] for each in targets} - {part_of[name]}

    @cache
    def way(number: int) -> tuple[int, ...]:
        return (number, *max((way(each) for each in below[number]), key=len, default=()))

    return [named[number] for number in max(map(way, named), key=len)]


def parts(graph: Graph) -> list[list[str]]:
    """Return the strongly connected parts of a graph, those below first (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for each in sorted(graph[name]):
            if each not in index:
                visit(each)
                low[name] = min(low[name], low[each])
            elif each in stack:
                low[name] = min(low[name], index[each])
        if low[name] == index[name]:
            place = stack.index(name)
            found.append(stack[place:])
            del stack[place:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def upward(graph: Graph) -> list[tuple[str, str]]:
    """Return arrows without which the rooms stand on floors.

    Rooms of a circle are put in the order of how many of the circle's arrows they draw less how many they get; an arrow
    that goes against this order goes up.
    """
    against = []
    for part in (set(part) for part in parts(graph) if len(part) > 1):
        drawn = {room: len(graph[room] & part) for room in part}
        got = {room: sum(room in graph[each] for each in part) for room in part}
        order = sorted(part, key=lambda room: (got[room] - drawn[room], room))
        place = {room: number for number, room in enumerate(order)}
        against += [(room, each) for room in order for each in sorted(graph[room] & part) if place[each] < place[room]]
    return against


def downward(graph: Graph) -> Graph:
    """Return the rooms with the arrows that go down: without circles."""
    against = set(upward(graph))
    return {room: {each for each in targets if (room, each) not in against} for room, targets in graph.items()}


def comments_and_code(modules: Iterable[Module]) -> tuple[int, int]:
    """Return how many lines have a comment, and how many have code that is not a docstring."""
    comments = code = 0
    for module in modules:
        with_code: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            if token.type == tokenize.COMMENT:
                comments += not re.match(r"#\s*(noqa|type:|fmt:)", token.string)
            elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
                with_code |= set(range(token.start[0], token.end[0] + 1))
        code += len(with_code - _docstring_lines(module))
    return comments, code


def _docstring_lines(module: Module) -> set[int]:
    lines: set[int] = set()
    for node in module.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            first = node.body[0]
            lines |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def functions(modules: Iterable[Module]) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for each in modules for node in each.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def passes_on(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is one statement that hands what it has to another one: `return self._x.y(a, b)`."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    value = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return | ast.Expr) else None
    value = value.value if isinstance(value, ast.Await) else value
    if not isinstance(value, ast.Call):
        return False
    given = [*value.args, *(keyword.value for keyword in value.keywords)]
    return all(isinstance(each, ast.Name | ast.Starred | ast.Constant) or _is_path(each) for each in given)


def reads_on(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a property only reads another object's field: `return self._x.y`."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    value = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
    is_property = any(isinstance(each, ast.Name) and each.id == "property" for each in function.decorator_list)
    return is_property and isinstance(value, ast.Attribute) and isinstance(value.value, ast.Attribute)


def _is_path(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def twice(modules: Iterable[Module]) -> list[str]:
    """Return the names that several classes have, without those that Django prescribes."""
    names = Counter(node.name for each in modules for node in each.nodes if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in names.items() if count > 1 and name not in OF_DJANGO)


def import_lines(modules: Iterable[Module]) -> int:
    nodes = (node for each in modules for node in each.nodes if isinstance(node, ast.Import | ast.ImportFrom))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def figures(house: House, checks: House) -> Iterator[Row]:
    """Yield what is counted, and how much of it there is."""
    modules = list(house.modules.values())
    lines = sum(each.lines for each in modules)
    yield "product lines / files", f"{lines:,} / {len(modules)}"
    yield (
        "test and bench lines / files",
        f"{sum(each.lines for each in checks.modules.values()):,} / {len(checks.modules)}",
    )
    yield "lines a file: mean, longest", f"{lines / len(modules):.0f}, {max(each.lines for each in modules)}"
    yield (
        f"files over {LONG_FILE} / {MAX_FILE} lines",
        " / ".join(str(sum(each.lines > bound for each in modules)) for bound in (LONG_FILE, MAX_FILE)),
    )
    fullest = ", ".join(f"{room} {count}" for room, count in house.sizes.most_common(4))
    yield "modules in the fullest folder", f"{house.sizes.most_common(1)[0][1]} ({fullest})"
    yield "longest chain of imports", str(len(longest_path(house.imports)))
    yield from _rooms(house)
    yield from _code(house)


def _rooms(house: House) -> Iterator[Row]:
    arrows = sum(map(len, house.rooms.values()))
    yield (
        "folders with a layer / layers / imports",
        f"{len(house.rooms)} / {len(longest_path(downward(house.rooms)))} / {arrows}",
    )
    against, circles = upward(house.rooms), [part for part in parts(house.rooms) if len(part) > 1]
    yield "imports of a higher layer, circles", f"{len(against)}, {len(circles)} ({sum(map(len, circles))} folders)"
    yield "circles of modules", str(sum(len(part) > 1 for part in parts(house.imports)))


def _code(house: House) -> Iterator[Row]:
    modules = list(house.modules.values())
    lines = sum(each.lines for each in modules)
    classes = sum(isinstance(node, ast.ClassDef) for each in modules for node in each.nodes)
    yield "classes, per 1,000 lines", f"{classes}, {1000 * classes / lines:.1f}"
    yield "class names that exist twice or more", str(len(twice(modules)))
    all_functions = functions(modules)
    lengths = [(each.end_lineno or each.lineno) - each.lineno + 1 for each in all_functions]
    yield "functions, median length", f"{len(lengths):,}, {median(lengths):.0f}"
    yield f"functions over {LONG_FUNCTION} lines", str(sum(length > LONG_FUNCTION for length in lengths))
    yield (
        "functions that only call or read another",
        " / ".join(f"{sum(map(test, all_functions)):,}" for test in (passes_on, reads_on)),
    )
    comments, code = comments_and_code(modules)
    yield "comments per 100 lines of code", f"{100 * comments / code:.1f} ({comments:,} of {code:,})"
    imports = import_lines(modules)
    yield "import lines, share", f"{imports:,}, {100 * imports / lines:.1f} %"


def details(house: House) -> Iterator[str]:
    """Yield what lies behind the figures: the longest chain, the arrows that go up, the names that exist twice."""
    yield f"longest chain: {' > '.join(longest_path(house.imports))}"
    yield f"layers: {' > '.join(longest_path(downward(house.rooms)))}"
    yield from (f"circle: {', '.join(sorted(part))}" for part in parts(house.rooms) if len(part) > 1)
    yield from (f"up: {room} imports from {each}" for room, each in upward(house.rooms))
    yield f"twice: {', '.join(twice(house.modules.values()))}"


def show(house: House, checks: House) -> None:
    """Print the table; with `--details` what lies behind it."""
    rows = list(figures(house, checks))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {value}")
    if "--details" in sys.argv[1:]:
        print("", *details(house), sep="\n")


if __name__ == "__main__":
    show(read(*PACKAGES), read(*CHECKS))
