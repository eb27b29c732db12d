"""Whatever a page names is there: settings, make targets, paths, versions of clients."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from responses_app.protocol.api_keys import SCOPES
from responses_app.settings.conf import secret_files, table
from tests.kit.server import ROOT
from tests.project.docs.pages import DOCS, blocks_of, everything, pages, text_of

SETTINGS = {*(row.name for row in table()), *secret_files()}
OURS = {  # of make, of tests and of templates: no settings of the server
    *(
        "BENCH_BASE",
        "BENCH_JSON",
        "BENCH_ROUNDS",
        "CLUSTER_STREAMS",
        "CLUSTER_TIMES",
        "FUZZ_SECONDS",
        "FUZZ_SEED",
        "SOAK_MINUTES",
        "TESTS_WITHOUT",
    ),
    *("CI_LIMIT_SECONDS", "BROWSER_WAIT_MS", "HOUR_STREAMS", "HOUR_CONNECTIONS", "HOUR_PACE"),
    *("LARGE_STORE_RESPONSES", "LARGE_STORE_URL", "NAME_FILE", "VECTOR_STORE_ID"),
    *("APP_LABEL", "MIGRATION_NAME"),
    "NOTES_MAX",
    *("RESPSITE_API_KEY", "RESPSITE_BIND", "RESPSITE_LISTEN", "RESPSITE_NAMES", "RESPSITE_TLS", "RESPSITE_UPSTREAM"),
}
WORDS = {
    "LICENSE",
    "TMPDIR",
    "PYTHONPATH",
    "EXPLAIN",
    "POST",
    "DELETE",
    "AGENT",
    "FILE",
    "PROMPT",
    "REWARD",
    "WORD",
    "COMMAND",
    "ELSEWHERE",
}
OF_OTHER_PROGRAMS = (
    *("COPILOT_", "OTEL_", "OMP_", "VLLM_", "OPENAI_", "ANTHROPIC_", "LITELLM_", "MALLOC_", "NO_COLOR", "HTTP_PROXY"),
    *("HTTPS_PROXY", "SSL_CERT_FILE", "API_KEY"),
    *("AIDER_", "CLAUDE_", "CODEX_HOME", "QWEN_HOME", "XDG_CONFIG_HOME"),
    *("API_BASE_URL", "USE_LITELLM", "DEFAULT_MODEL"),  # ShellGPT; the last one begins names of Open WebUI, too
    *("RAG_", "TASK_MODEL_PARAMS", "CORS_ALLOW_ORIGIN", "ENABLE_OLLAMA_API", "ENABLE_OPENAI_API"),
    *("ENABLE_TITLE_GENERATION", "ENABLE_TAGS_GENERATION", "ENABLE_FOLLOW_UP_GENERATION", "ENABLE_PERSISTENT_CONFIG"),
    *("ENABLE_RETRIEVAL_QUERY_GENERATION", "ENABLE_CONTEXT_COMPACTION", "ENABLE_DIRECT_CONNECTIONS"),
    *("ENABLE_RESPONSES_API_STATEFUL", "CONTEXT_COMPACTION_TOKEN_THRESHOLD"),
)
OF_THE_PACKAGE = "it is a part of "  # the package of the page of extensions
README = ROOT / "README.md"
MAP = DOCS / "explanation" / "map.md"
GLOSSARY = DOCS / "reference" / "glossary.md"
MAX_MAP_LINES, MAX_WORDS = 105, 15


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_setting_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", text_of(page)))
    assert {name for name in named - SETTINGS - OURS if not name.startswith(OF_OTHER_PROGRAMS)} == set()
    assert set(re.findall(r"`([A-Z]{4,})`", text_of(page))) <= SETTINGS | WORDS


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", everything(), re.MULTILINE))
    assert {"run", "test", "check", "bench", "docs", "format", "superuser", "help"} <= named
    assert named <= targets


def test_the_page_of_keys_has_every_scope_and_no_other() -> None:
    named = set(re.findall(r"`(\w+\.\w+\.(?:read|write))`", text_of(DOCS / "how-to" / "api-keys.md")))
    assert named == {*SCOPES, "api.all.read"}  # the latter stands for all that read


def test_commands_are_those_of_the_program_which_the_wheel_has_too() -> None:
    """Two pages name `manage.py`: the other way in a checkout, and what it was before."""
    named = [str(page.relative_to(DOCS)) for page in pages() if page != README and "manage.py" in text_of(page)]
    assert sorted(named) == ["how-to/upgrade.md", "reference/commands.md"]
    assert "manage.py" not in text_of(README)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_is_named_exists(page: Path) -> None:
    text = text_of(page)
    named = [
        *(path for path in re.findall(r"`([\w./-]+(?:/|\.py))`", text) if not path.startswith(("/", "."))),
        *re.findall(r"`((?:deploy|docs|engine|respsite|responses_app|tests)/[\w./-]*)`", text),
    ]
    anywhere = [ROOT, ROOT / "responses_app", ROOT / "engine"]
    assert [path for path in named if not any((folder / path).exists() for folder in anywhere)] == []


def test_the_map_is_short_and_names_no_folder_that_is_gone() -> None:
    text = text_of(MAP)
    assert len(text.splitlines()) <= MAX_MAP_LINES
    drawing = text.partition("```text")[2].partition("```")[0]
    named = re.findall(r"(?<![\w/])(\w+)/", drawing)
    there = {path.name for package in ("engine", "respsite", "responses_app") for path in (ROOT / package).rglob("*/")}
    assert len(named) > 20
    assert set(named) - there <= {"engine", "respsite"}  # the packages themselves


def test_names_in_the_map_are_names_of_the_code() -> None:
    named = {part for name in re.findall(r"`([\w.]+)`", text_of(MAP)) for part in name.split(".")}
    sources = [*ROOT.glob("responses_app/**/*.py"), *ROOT.glob("engine/**/*.py"), *ROOT.glob("**/playground/*.js")]
    words = {"py", "md", *re.findall(r"\w+", " ".join(path.read_text() for path in sources))}
    assert len(named) > 50
    assert named <= words


def test_the_page_of_extensions_shows_the_package_that_is_tested() -> None:
    page, package = DOCS / "how-to" / "extensions.md", ROOT / "tests" / "system" / "extensions" / "acme_notes_package"
    shown = [block for block in blocks_of(page) if block.why_not.startswith(OF_THE_PACKAGE)]
    assert len(shown) > 4
    for block in shown:
        file = block.why_not.removeprefix(OF_THE_PACKAGE)
        assert _lines(block.code) - _lines((package / file).read_text()) == set(), file


def _lines(code: str) -> set[str]:
    """Return the lines of Python, as if each name had an import of its own."""
    lines = [line.strip() for line in code.splitlines()]
    parts = [re.fullmatch(r"(from \S+ import )(.+)", line) for line in lines]
    imports = {f"{found[1]}{name}" for found in parts if found for name in found[2].split(", ")}
    return imports | {line for line, found in zip(lines, parts, strict=True) if not found}


def test_the_glossary_has_few_words_and_explains_each_once() -> None:
    words = re.findall(r"^- \*\*(.+?)\*\*", text_of(GLOSSARY), re.MULTILINE)
    assert 10 <= len(words) <= MAX_WORDS
    assert len(words) == len(set(words))
    assert "glossary.md" in text_of(MAP)


def test_files_that_the_threat_model_names_exist() -> None:
    named = set(re.findall(r"`([\w-]+/[\w./-]+)`", text_of(DOCS / "explanation" / "threat-model.md")))
    assert len(named) > 60
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("client", ["claude", "codex", "copilot", "javascript", "opencode", "qwen"])
def test_clients_are_those_of_the_tests(client: str) -> None:
    packages = json.loads((ROOT / "tests/clients" / client / "package.json").read_text())["dependencies"]
    makers = ("openai", "github", "claude", "opencode", "qwen")
    versions = [wanted.rpartition("@")[2] for name, wanted in packages.items() if any(each in name for each in makers)]
    assert versions
    said = everything()
    assert [version for version in versions if not re.search(rf"(?<![\d.]){re.escape(version)}(?![\d])", said)] == []


def test_python_clients_are_those_of_the_tests() -> None:
    requirements = (ROOT / "tests/clients/python_clients/requirements.txt").read_text()
    pinned = dict(re.findall(r"^(.+)==(.+)$", requirements, re.MULTILINE))
    for name in ("pydantic-ai-slim", "langchain-openai", "litellm", "pipecat-ai"):
        install = rf"`pip install '?{name}(?:\[\w+\])?'?(?: mcp)?`"
        said = re.findall(rf"^{install}, tested with (\d[\d.]*\d)", everything(), re.MULTILINE)
        assert set(said) == {pinned[name]}


def test_nothing_is_said_about_one_persons_machine() -> None:
    # `/root/NAME` is an agent.
    assert not re.findall(r"(?<!\w)/(?:home|work|tmp|root/\.)/?", everything())


def test_the_notes_for_an_upgrade_know_the_last_migration() -> None:
    migrations = sorted(path.stem for path in (ROOT / "responses_app" / "migrations").glob("0*.py"))
    assert f"Migrations up to {migrations[-1][:4]}." in text_of(DOCS / "how-to" / "upgrade.md")


def test_the_changelog_has_no_entry_twice() -> None:
    # Branches are merged by union, which keeps an entry of both.
    entries = re.split(r"\n(?=- |#)", (ROOT / "CHANGELOG.md").read_text())
    count = Counter(" ".join(each.split()) for each in entries if each.startswith("- "))
    assert not [each for each, times in count.items() if times > 1]
