"""The command and its arguments."""

from argparse import ArgumentParser

from responses_app.command_line.endpoint import DEFAULT_URL, add_endpoint
from responses_app.kit.extension import Command

CHECKS_AT_ONCE = 4


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("base_url", metavar="URL", nargs="?", help=f"the server's base URL, like {DEFAULT_URL}")
    add_endpoint(parser, url_flag=False)
    parser.add_argument("--key", help="the API key itself; other people on this machine can see it in the command")
    parser.add_argument("--model", help="the model (default: the first that the server lists)")
    parser.add_argument(
        "--only", action="append", metavar="GROUP", help="run only this group or check; can be repeated"
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=CHECKS_AT_ONCE,
        metavar="N",
        help="checks that run in parallel (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="N", help="time limit of a check (default: %(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="list the checks with their rules, and exit")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--junit", metavar="FILE", help="write the results as JUnit XML")


COMMANDS = (
    Command(
        "conformance",
        "Test a server against OpenAI's and Anthropic's APIs; the status is 1 if a check fails.",
        _arguments,
        "responses_app.extensions.conformance.program:run",
    ),
)
