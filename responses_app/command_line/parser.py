"""The arguments of every command of `respsite`. Imports neither Django nor what a command does."""

from argparse import ArgumentParser

from responses_app import __version__
from responses_app.command_line.endpoint import add_endpoint
from responses_app.management.flags import add_flags

ABOUT = "respsite: the stateful Responses API server for open models, and what belongs to it."


def build_parser() -> ArgumentParser:
    """Return the parser of the whole program; `command` is None where none was given."""
    parser = ArgumentParser(prog="respsite", description=ABOUT, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"respsite {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    def command(name: str, about: str) -> ArgumentParser:
        return commands.add_parser(name, help=about, description=about, allow_abbrev=False)

    add_flags(command("serve", "Migrate the database and serve in the foreground."))
    _chat(
        command("chat", "Talk to a model in the terminal, over the WebSocket; in a pipe: a prompt in, its answer out.")
    )
    _manage(command("manage", "Run one of Django's commands: `respsite manage create_key`, `respsite manage help`."))
    _completion(command("completion", "Print what a shell needs to complete these commands."))
    return parser


def _chat(parser: ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="answer this one prompt; without it: what is typed, or a pipe")
    add_endpoint(parser)
    parser.add_argument("--model", help="the model (default: the first that the server serves)")
    parser.add_argument("--instructions", help="what the model is told before anything else")
    parser.add_argument("--effort", choices=("minimal", "low", "medium", "high"), help="how much it thinks")
    parser.add_argument("--tools", metavar="FILE", help="functions as JSON; their calls are answered by you")
    parser.add_argument(
        "--run-tools", metavar="COMMAND",
        help="a command that answers calls: JSON with `name` and `arguments` on its input, the output on its own",
    )  # fmt: skip
    parser.add_argument(
        "--server-tools", metavar="NAMES",
        help="tools of the server: code_interpreter,web_search,image_generation,mcp=LABEL,file_search=STORE",
    )  # fmt: skip
    parser.add_argument("--resume", metavar="ID", help="continue this response")
    parser.add_argument("--no-store", action="store_true", help="keep nothing on the server")
    parser.add_argument("--no-reasoning", action="store_true", help="do not show what the model thinks")
    parser.add_argument("--show-id", action="store_true", help="in a pipe: the response's id on standard error")


def _manage(parser: ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="WORD", help="the command and its arguments")


def _completion(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell")
