"""The house stands: imports only go down, nothing goes in circles, files stay short, and all is told what it is."""

import ast
import gc
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.kit.server import ROOT, clean_environ

PACKAGES = ("engine", "responses_app", "respsite")
MAX_FILE, LONG_FILE = 600, 400
# Rooms by floors, the ground first. A room is a folder; it knows rooms on lower floors, none beside it.
FLOORS = (
    ("engine",),
    ("protocol",),
    ("kit",),
    ("models", "limits", "observing"),
    ("stores", "migrations"),
    ("auth", "tools"),
    ("runs",),
    ("settings",),  # what the rooms below declare, gathered; those above it have theirs here
    ("wiring",),
    ("web",),
    ("api",),
    ("management", "admin"),
    ("command_line", "responses_app"),  # the latter are the files that Django looks for in the package's own folder
    ("extensions",),  # each a room of its own
    ("respsite",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# A resource is a folder from top to bottom: each of its files stands just above one of these rooms, by its name.
ABOVE = {
    "__init__": "protocol",
    "lines": "protocol",
    "messages": "protocol",
    "model": "kit",  # below `models`, which gathers it
    "fields": "models",
    "outbox": "models",  # other stores call these three
    "chain": "models",
    "keeping": "models",
    "appending": "models",
    "removal": "models",
    "bundles": "models",
    "rows": "models",
    **dict.fromkeys(("store", "callers", "work", "search", "nearest"), "stores"),
    **dict.fromkeys(("settings", "sender", "tool"), "tools"),
    "handlers": "runs",
    "runner": "runs",
    "duty": "runs",
    "queries": "web",
    "endpoints": "web",  # below `api`, which gathers it
}
DJANGO = {"django", "axes", "channels", "channels_redis", "daphne", "asgiref", "dj_database_url", "mozilla_django_oidc"}
KNOWS_DJANGO = {
    *("kit", "resources", "extensions", "models", "migrations", "stores"),
    *(room for rooms in FLOORS[FLOOR["wiring"] :] for room in rooms),
}
HEAVY = {"torch", "vllm", "zmq"}
TOP_LEVEL = {
    *("engine", "responses_app", "respsite", "tests", "manage.py", "pyproject.toml", "README.md"),
    *("Makefile", "constraints.txt", "constraints-dev.txt", "CHANGELOG.md", "LICENSE", "SECURITY.md"),
    *("bench", "deploy", "docs"),
}
INSIDE_OF_RUNS = ("driving", "registry", "plan.turns", "duties")  # parts of `runs` that only wiring knows beside it
READS_THE_ENVIRONMENT = (
    *("respsite/", "manage.py", "responses_app/management/", "responses_app/command_line/"),
    *(f"responses_app/extensions/containers/{name}.py" for name in ("command", "keeper")),  # parts of the two above
    "responses_app/extensions/terminal/",  # its commands
    "responses_app/extensions/containers/sandbox/inside/",  # programs that run in a sandbox, and see nothing of ours
)


@dataclass(frozen=True)
class Import:
    """A module of ours imports something, at its top or inside a function."""

    importer: str
    imported: str
    line: int
    for_types: bool = False  # under TYPE_CHECKING: nothing is loaded

    def __str__(self) -> str:
        return f"{self.importer} line {self.line} imports {self.imported}"


def module_name(path: Path) -> str:
    """Return the dotted name of one of our files."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Return our modules by their names."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            found[module_name(path)] = path
    return found


@cache
def trees() -> dict[str, ast.Module]:
    """Return our modules parsed, by their names.

    The garbage collector would go through all of them again and again: three quarters of the time that this takes.
    """
    gc.collect()  # what is garbage now would be frozen with them
    gc.disable()
    try:
        parsed = {name: ast.parse(path.read_text(), str(path)) for name, path in modules().items()}
        gc.freeze()
    finally:
        gc.enable()
    return parsed


@cache
def imports() -> tuple[Import, ...]:
    """Return every import of our modules."""
    return tuple(found for name, tree in trees().items() for found in _imports_of(name, tree))


def _imports_of(name: str, tree: ast.Module) -> Iterator[Import]:
    blocks = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    for_types = {node.lineno for block in blocks for node in ast.walk(block) if isinstance(node, ast.ImportFrom)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} line {node.lineno}: imports are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                imported = whole if whole in modules() else str(node.module)
                yield Import(name, imported, node.lineno, node.lineno in for_types)


def ours() -> Iterator[Import]:
    """Yield the imports of one of our modules by another."""
    return (found for found in imports() if found.imported.partition(".")[0] in PACKAGES)


def room_of(module: str) -> str:
    package, *inside = module.split(".")
    room = inside[0] if package == "responses_app" and inside and is_folder(f"{package}.{inside[0]}") else package
    if room in ("resources", "extensions"):
        return ".".join(inside[:2])
    assert room in FLOOR, f"{module} has no floor: add its folder to FLOORS"
    return room


@cache
def is_folder(package: str) -> bool:
    """Whether this is a package, and no module."""
    return (ROOT / package.replace(".", "/") / "__init__.py").exists()


def floor_of(module: str) -> float:
    """Return the floor a module is on. The package that all is in says its version, and so is below everything."""
    if module.startswith("responses_app.resources."):
        name = "__init__" if is_folder(module) else module.rpartition(".")[2]
        return FLOOR[ABOVE[name]] + 0.5
    return -1 if module == "responses_app" else FLOOR[room_of(module).partition(".")[0]]


def folder_of(module: str) -> str:
    """Return the folder that a module's file lies in, as a package; of a resource, the file itself."""
    if module.startswith("responses_app.resources."):
        return module
    return module if is_folder(module) else module.rpartition(".")[0]


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def tracked_files() -> list[Path]:
    """Return what git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is not a git checkout")
    return [path for line in listed.stdout.decode().splitlines() if (path := ROOT / line).exists()]


def test_imports_only_go_down() -> None:
    """And never to another room of the same floor."""
    between = [each for each in ours() if room_of(each.imported) != room_of(each.importer)]
    assert [str(each) for each in between if floor_of(each.imported) >= floor_of(each.importer)] == []


def test_there_are_no_circles() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for found in ours():
        if found.imported in graph and found.imported != found.importer:
            graph[found.importer].add(found.imported)
    assert _circle(graph) is None


def test_folders_form_no_circle() -> None:
    """A folder's own files are one, apart from those in the folders in it: these are above them, or below."""
    graph: dict[str, set[str]] = {folder_of(name): set() for name in modules()}
    for found in ours():
        if found.imported in modules() and found.imported != "responses_app":  # its version
            graph[folder_of(found.importer)].add(folder_of(found.imported))
    for folder, known in graph.items():
        known.discard(folder)
    assert _circle(graph) is None


def _circle(graph: dict[str, set[str]]) -> list[str] | None:
    """Return a circle of imports, None if there is none."""
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        path.append(name)
        for each in sorted(graph[name]):
            circle = visit(each)
            if circle:
                return circle
        done.add(path.pop())
        return None

    return next((circle for name in graph if (circle := visit(name))), None)


def test_a_circle_would_be_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}) == ["a", "b", "c", "a"]


@pytest.mark.parametrize(
    "folder", ["responses_app.stores", "responses_app.limits", "engine.backends", "engine.embeddings"]
)
def test_implementations_know_their_base_and_never_each_other(folder: str) -> None:
    """What is an implementation is what wiring or the settings can choose; its helpers are its own."""
    chosen = [name for name in modules() if name.startswith(f"{folder}.") and _is_implementation(name)]
    assert chosen
    sideways = [str(found) for found in ours() if found.importer in chosen and found.imported in chosen]
    from_base = [str(found) for found in ours() if found.importer == f"{folder}.base" and found.imported in chosen]
    assert sideways + from_base == []


_CHOSEN = re.compile(r"Base(Engine|Embeddings|ResponseStore|Ledger)|(Simulated|Checking)Engine")


def _is_implementation(module: str, contract: re.Pattern[str] = _CHOSEN) -> bool:
    """Whether a module holds a subclass of a contract that can be made, and is none itself."""
    classes = (node for node in ast.walk(trees()[module]) if isinstance(node, ast.ClassDef))
    made = (node for node in classes if not contract.fullmatch(node.name))
    return any(contract.fullmatch(ast.unparse(base)) for node in made for base in node.bases)


def known_to_runs() -> set[str]:
    """Return what `runs` loads of ours: a store that has no other implementation is named there, for its type."""
    return {found.imported for found in ours() if room_of(found.importer) == "runs" and not found.for_types}


def test_runs_know_only_the_contracts_of_adapters() -> None:
    """What implements one is not imported, nor is a folder inside of these rooms: databases, and each tool's own."""
    rooms = ("stores", "limits", "tools", "auth", "observing")
    adapters = {name for name in known_to_runs() if room_of(name) in rooms}
    assert adapters
    assert {name for name in adapters if folder_of(name).count(".") > 1} == set()
    contract = re.compile(r"Base[A-Z]\w+")
    assert {name for name in adapters if _is_implementation(name, contract)} == set()
    assert {name for name in known_to_runs() if room_of(name) in ("models", "migrations")} == set()


def test_runs_know_only_the_contract_of_engines() -> None:
    backends = {name for name in known_to_runs() if name.startswith("engine.backends")}
    assert backends == {"engine.backends.base"}


def test_nothing_outside_of_runs_knows_a_run() -> None:
    """Transports have readers, which are the same for a run here, for one elsewhere, and for a log.

    The duty of a resource may take turns, which know no run either.
    """
    inner = tuple(f"responses_app.runs.{folder}" for folder in INSIDE_OF_RUNS)
    known = [each for each in ours() if each.imported.startswith(inner)]
    takes_turns = {
        each
        for each in known
        if each.imported == "responses_app.runs.plan.turns" and floor_of(each.importer) == FLOOR["runs"] + 0.5
    }
    assert {room_of(each.importer) for each in known if each not in takes_turns} == {"runs", "wiring"}


def test_resources_of_the_api_know_nothing_of_each_other() -> None:
    """A module with a table of endpoints is a resource; one more gathers the tables. Other modules belong to one."""
    inside = {
        (each.importer, each.imported) for each in ours() if room_of(each.importer) == room_of(each.imported) == "api"
    }
    tables = {name for name in modules() if room_of(name) == "api" and _has_endpoints(name)}
    between = {pair for pair in inside if tables.issuperset(pair)}
    (gathering,) = {importer for importer, _ in between}
    assert {imported for _, imported in between} == tables - {gathering}
    users: dict[str, set[str]] = {}
    for importer, imported in inside:
        if importer in tables and imported not in tables:
            users.setdefault(imported, set()).add(importer)
    assert {name: known for name, known in users.items() if len(known) > 1} == {}


def _has_endpoints(module: str) -> bool:
    for node in trees()[module].body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(ast.unparse(target) == "ENDPOINTS" for target in targets):
            return True
    return False


def test_only_wiring_knows_a_model_format() -> None:
    """It has one made by MODEL_FORMAT; everything else of the application knows the contract alone."""
    outside = [each for each in ours() if room_of(each.importer) != "engine"]
    makers = {room_of(each.importer) for each in outside if folder_of(each.imported) == "engine.models"}
    assert makers == {"wiring"}
    assert {each.imported for each in outside if each.imported.startswith("engine.formats.")} == {"engine.formats.base"}
    library = {each.importer for each in imports() if each.imported.partition(".")[0] in ("openai_harmony", "tiktoken")}
    assert {name for name in library if not name.startswith("engine.formats.harmony.")} == set()


def test_only_what_may_imports_django() -> None:
    def may(module: str) -> bool:
        return room_of(module).partition(".")[0] in KNOWS_DJANGO

    found = [each for each in imports() if each.imported.partition(".")[0] in DJANGO and not may(each.importer)]
    assert [str(each) for each in found] == []


def is_pure_of_a_resource(module: str) -> bool:
    """Whether a file of a resource stands on the protocol's floor."""
    return room_of(module).startswith("resources.") and floor_of(module) < FLOOR["kit"]


def test_the_protocol_is_pure() -> None:
    """No I/O, no clock, no chance: ids and times are handed in.

    One file has a context: whoever reads a part of a body notes what is ignored in it, however deep it stands.
    """
    impure = {
        *("asyncio", "concurrent", "contextvars", "threading", "multiprocessing", "subprocess", "signal"),
        *("time", "datetime", "random", "secrets", "uuid", "logging"),
        *("os", "pathlib", "tempfile", "shutil", "socket", "select", "ssl", "http", "urllib", "httpx", "redis"),
    }
    rooms = ("responses_app.protocol", "engine.formats")
    pure = [each for each in imports() if each.importer.startswith(rooms) or is_pure_of_a_resource(each.importer)]
    assert {room_of(each.importer).partition(".")[0] for each in pure} == {"protocol", "engine", "resources"}
    found = [each for each in pure if each.imported.partition(".")[0] in impure]
    assert {(each.importer, each.imported) for each in found} == {("responses_app.protocol.fields", "contextvars")}


def test_one_file_knows_prometheus() -> None:
    known = [each for each in imports() if each.imported.partition(".")[0] == "prometheus_client"]
    assert {each.importer for each in known} == {"responses_app.observing.exposition"}


def test_one_file_knows_orjson() -> None:
    """It alone reads and writes numbers of any size."""
    known = [each for each in imports() if each.imported.partition(".")[0] == "orjson"]
    assert {each.importer for each in known} == {"engine.orjson"}


def test_one_file_knows_opentelemetry() -> None:
    known = [each for each in imports() if each.imported.partition(".")[0] == "opentelemetry"]
    assert {each.importer for each in known} == {"responses_app.observing.traces"}


def test_only_the_embedded_vllm_imports_vllm_and_only_when_it_starts() -> None:
    heavy = {each.importer for each in imports() if each.imported.partition(".")[0] in HEAVY}
    assert {folder_of(name) for name in heavy} == {"engine.backends.vllm", "engine.embeddings"}


def loaded_by(*names: str, **environ: str) -> set[str]:
    """Return the top-level packages that importing these modules loads, in a fresh process."""
    lines = "; ".join(f"import {name}" for name in names)
    code = f"import sys; {lines}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=clean_environ(**environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_engine_protocol_and_runs_load_no_django() -> None:
    pure = ("engine.backends", "engine.formats", "responses_app.protocol", "responses_app.runs")
    names = [name for name in modules() if name.startswith(pure)]
    assert len(names) > 20
    assert loaded_by(*names) & (DJANGO | HEAVY | {"twisted", "redis", "openai"}) == set()


def test_the_application_loads_neither_torch_nor_the_sdk(tmp_path: Path) -> None:
    loaded = loaded_by("respsite.asgi", "responses_app.management.commands.serve", DATA_DIR=str(tmp_path))
    assert "django" in loaded
    assert loaded & {"mozilla_django_oidc", "jwt", "requests"} == set(), "only single sign-on needs these"
    assert (
        loaded & (HEAVY | {"openai", "pytest", "hypothesis", "redis", "psycopg", "prometheus_client", "opentelemetry"})
        == set()
    )


def test_the_environment_is_read_in_one_place() -> None:
    readers = []
    for path in [*python_files(*PACKAGES), ROOT / "manage.py"]:
        name = path.relative_to(ROOT).as_posix()
        uses = re.search(r"\bos\.(environ|getenv|putenv)\b|from os import .*\b(environ|getenv)\b", path.read_text())
        if uses and not name.startswith(READS_THE_ENVIRONMENT):
            readers.append(name)
    assert readers == []


def test_settings_are_read_by_wiring_alone() -> None:
    """Below it nobody sees the settings."""
    readers = {each.importer for each in ours() if room_of(each.imported) == "settings"}
    assert {name for name in readers if room_of(name) != "settings" and floor_of(name) < FLOOR["wiring"]} == set()


def test_no_file_is_too_long() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in python_files(*PACKAGES, "tests", "bench")}
    for path, length in lengths.items():
        if length > LONG_FILE:
            print(f"long: {path.relative_to(ROOT)} has {length} lines")
    assert {str(path): length for path, length in lengths.items() if length > MAX_FILE} == {}


def test_everything_public_says_what_it_is() -> None:
    silent = []
    for name, path in modules().items():
        if ".migrations." in name or not path.read_text().strip():
            continue
        silent += [f"{name}{where}" for where, node in _public(trees()[name]) if not ast.get_docstring(node)]
    assert silent == []


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _public(module: ast.Module) -> Iterator[tuple[str, Documented]]:
    """Yield a module, its public classes and functions, and the public methods that override nothing."""
    yield "", module
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield f".{node.name}", node
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not node.bases:
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith("_"):
                    yield f".{node.name}.{method.name}", method


def test_nothing_prints() -> None:
    prints = [
        f"{name} line {node.lineno}"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "breakpoint")
    ]
    assert prints == []


def test_nothing_is_called_utils() -> None:
    assert [name for name in modules() if re.search(r"(^|\.)(utils?|helpers?|common|misc)$", name)] == []


def test_the_top_level_holds_what_it_should() -> None:
    names = {path.relative_to(ROOT).parts[0] for path in tracked_files()}
    assert {name for name in names if not name.startswith(".")} <= TOP_LEVEL


def test_nothing_names_a_path_of_one_machine() -> None:
    # `/root` alone, and what stands behind it by name, are agents of a response.
    pattern = re.compile(r"""(?<![\w.*/-])/(?:(?:work|home)(?=/|["'`\s]|$)|root/\.)""", re.MULTILINE)
    named = []
    for path in tracked_files():
        if path.is_symlink() or path.suffix in (".jsonl", ".png"):
            continue
        found = pattern.search(path.read_text(errors="replace"))
        if found and path != Path(__file__):
            named.append(f"{path.relative_to(ROOT)}: {found[0]}")
    assert named == []
