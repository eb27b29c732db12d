"""The arguments of every command of `respsite`. Imports neither Django nor what a command does."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from responses_app import __version__
from responses_app.command_line.endpoint import DEFAULT_URL, add_endpoint
from responses_app.management.flags import add_flags, explain

MAX_SPEED = 1e6
CHECK_SECONDS = 3.5
CHECKS_AT_ONCE = 4
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # as the API has them
AGENTS = ("codex", "claude", "opencode", "copilot", "qwen", "aider")  # that `configure` knows
MAX_CONTEXT = 100_000_000
PROMPT = "count to 100, in words, one a line"
ABOUT = "respsite: the stateful Responses API server for open models, and what belongs to it."


def build_parser() -> ArgumentParser:
    """Return the parser of the whole program; `command` is None where none was given."""
    parser = ArgumentParser(prog="respsite", description=ABOUT, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"respsite {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Explained)

    def command(name: str, about: str, *runs: str) -> ArgumentParser:
        """Add a command; `runs` are the module and the function that run it, given the parsed arguments."""
        added: ArgumentParser = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
        added.set_defaults(runs=runs)
        return added

    about = "Migrate the database and serve in the foreground."
    add_flags(command("serve", about, "manage", "run_serve"))
    about = "Talk to a model in the terminal, over the WebSocket; in a pipe: a prompt in, its answer out."
    _chat(command("chat", about, "chat", "run"))
    about = "Show a stored response once more, at its pace."
    _replay(command("replay", about, "replay", "run"))
    about = "Measure how fast a server streams: tokens per second, first token, gaps between events."
    _bench(command("bench", about, "bench", "run"))
    about = "Check how far a server keeps to OpenAI's and Anthropic's APIs; status 1 where a check fails."
    _conformance(command("conformance", about, "conformance.program", "run"))
    about = "Write responses with their chains, and conversations, into a file of JSON Lines."
    _export(command("export", about, "transfer", "run_export"))
    about = "Read such a file into the database; what is there already is left as it is."
    reads = command("import", about, "transfer", "run_import")
    reads.add_argument("file", metavar="FILE", help="what `respsite export` wrote; - is standard input")
    about = "Say what is wrong with this installation and what to do, in order."
    _doctor(command("doctor", about, "doctor", "run"))
    about = "Run one of Django's commands: `respsite manage create_key`, `respsite manage help`."
    command("manage", about).add_argument("words", nargs="*", metavar="WORD", help="the command and its arguments")
    about = "Print what a coding agent's own configuration needs to use this server, or write it there."
    _configure(command("configure", about, "configure", "run"))
    about = "Print what a shell needs to complete these commands."
    completes = command("completion", about, "parser", "run_completion")
    completes.add_argument("shell", choices=("bash", "zsh"), help="the shell")
    return parser


class _Explained(ArgumentParser):
    """A parser whose flags say more than is known at once, where somebody asks for it."""

    def format_help(self) -> str:
        """Return the help."""
        explain(self)
        return super().format_help()


def _chat(parser: ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="answer this one prompt; without it: what is typed, or a pipe")
    add_endpoint(parser)
    parser.add_argument("--model", help="the model (default: the first that the server serves)")
    parser.add_argument("--instructions", help="what the model is told before anything else")
    parser.add_argument("--effort", choices=EFFORTS, help="how much it thinks")
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


def _replay(parser: ArgumentParser) -> None:
    parser.add_argument("id", help="the response's id")
    add_endpoint(parser)
    parser.add_argument("--speed", type=_speed, default=1.0, metavar="N", help="N times as fast as it was (default: 1)")
    parser.add_argument("--starting-after", type=int, metavar="NUMBER", help="begin behind the event with this number")
    parser.add_argument("--json", action="store_true", help="print every event as a line of JSON")


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed <= MAX_SPEED:
        raise ArgumentTypeError(f"a number greater than 0, at most {MAX_SPEED:.0f}")
    return speed


def _bench(parser: ArgumentParser) -> None:
    parser.add_argument("base_url", metavar="URL", help=f"the server's base URL, like {DEFAULT_URL}")
    add_endpoint(parser, url_flag=False)
    parser.add_argument("--api", choices=("responses", "chat"), default="responses", help="default: %(default)s")
    parser.add_argument("--model", help="the model; servers other than respsite need it")
    parser.add_argument(
        "--concurrency", default="1,4,16", metavar="N,M", help="requests at once (default: %(default)s)"
    )
    parser.add_argument("--requests", type=int, default=32, metavar="N", help="of each level (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="N", help="at most, for each level (default: %(default)s)"
    )
    parser.add_argument("--prompt", default=PROMPT, help="what is asked (default: %(default)r)")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="of an answer (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there; - is standard output")
    parser.add_argument("--svg", metavar="FILE", help="write the picture there")


def _conformance(parser: ArgumentParser) -> None:
    parser.add_argument("base_url", metavar="URL", nargs="?", help=f"the server's base URL, like {DEFAULT_URL}")
    add_endpoint(parser, url_flag=False)
    parser.add_argument("--key", help="the API key itself; other people on this machine can see it in the command")
    parser.add_argument("--model", help="the model (default: the first that the server lists)")
    parser.add_argument("--only", action="append", metavar="GROUP", help="this group, or this check; can be repeated")
    parser.add_argument(
        "--at-once", type=int, default=CHECKS_AT_ONCE, metavar="N", help="checks at once (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="N", help="for each check (default: %(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="print the checks with their rules, and ask nobody")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.add_argument("--junit", metavar="FILE", help="write JUnit's XML there")


def _export(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="where to; - is standard output")
    parser.add_argument("--project", metavar="NAME", help="of this project alone")
    parser.add_argument("--resume", action="store_true", help="go on with a file whose export was cut")


def _doctor(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, default=CHECK_SECONDS, metavar="N",
        help="for all checks, which run beside each other (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="tell it as JSON")


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("agent", nargs="?", choices=AGENTS, metavar="AGENT", help=f"one of {', '.join(AGENTS)}")
    parser.add_argument(
        "--write", action="store_true", help="merge it into the agent's file, and keep a backup of that"
    )
    parser.add_argument("--url", help="the server's base URL (default: made of the settings HOST and PORT)")
    parser.add_argument("--model", help="the model (default: the first that is served)")
    parser.add_argument(
        "--context", type=_tokens, metavar="TOKENS",
        help="the model's length (default: what the settings or the server say, else what the agent takes it for)",
    )  # fmt: skip
    add_endpoint(parser, url_flag=False)


def _tokens(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MAX_CONTEXT:
        raise ArgumentTypeError(f"a whole number of at least 1 and at most {MAX_CONTEXT}")
    return int(text)


def run_completion(options: Namespace) -> int:
    """Write what a shell needs to complete the commands to standard output."""
    import shtab  # here, as no other command needs it

    sys.stdout.write(shtab.complete(build_parser(), shell=options.shell))
    sys.stdout.write("\n")
    return 0
