"""The commands: of `respsite`, of `respsite manage`, and of make."""

import re
from argparse import SUPPRESS, ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path

from django.core.management import get_commands, load_command_class

from docs.extension.tables import code, plain, table
from responses_app.command_line.parser import build_parser
from responses_app.management.flags import explain

ROOT = Path(__file__).parent.parent.parent
APP = "responses_app"
OF_DJANGO = {action.dest for action in ArgumentParser()._actions} | {
    *("version", "verbosity", "settings", "pythonpath", "traceback", "no_color", "force_color", "skip_checks"),
}


def program() -> str:
    """Return a section for each command of `respsite`."""
    sections = []
    for name, parser in subcommands(build_parser()):
        explain(parser)
        sections += _sections(f"respsite {name}", parser)
    return "\n\n".join(sections)


def manage() -> str:
    """Return a section for each command of ours of `respsite manage`."""
    names = sorted(name for name, app in get_commands().items() if app == APP)
    parsers = ((name, load_command_class(APP, name).create_parser("respsite manage", name)) for name in names)
    return "\n\n".join(section for name, parser in parsers for section in _sections(f"respsite manage {name}", parser))


def targets() -> str:
    """Return the table of make's targets."""
    found = re.findall(r"^([a-z-]+):.*?## (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return table(("command", "what it does"), ((code(f"make {name}"), about) for name, about in sorted(found)))


def subcommands(parser: ArgumentParser) -> Iterator[tuple[str, ArgumentParser]]:
    """Yield the commands that a parser knows, those of its commands too."""
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for name, below in action.choices.items():
                yield name, below
                yield from ((f"{name} {deeper}", each) for deeper, each in subcommands(below))


def _sections(name: str, parser: ArgumentParser) -> Iterator[str]:
    yield f"### {name}"
    yield plain(parser.description or "")
    rows = []
    for action in parser._actions:
        if action.dest in OF_DJANGO or action.help == SUPPRESS or isinstance(action, _SubParsersAction):
            continue
        value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
        value = ",".join(map(str, action.choices)) if action.choices and not action.metavar else str(value)
        shown = ", ".join(action.option_strings) + (f" {value}" if value else "") if action.option_strings else value
        rows.append((code(shown.strip()), plain((action.help or "") % {"default": action.default, "prog": name})))
    if rows:
        yield table(("argument", "what it does"), rows)
