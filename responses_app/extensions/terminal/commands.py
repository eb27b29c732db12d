"""The commands and their arguments."""

from argparse import ArgumentParser, ArgumentTypeError

from responses_app.command_line.endpoint import DEFAULT_URL, add_endpoint, whole_number
from responses_app.kit.extension import Command

HERE = "responses_app.extensions.terminal"
MAX_SPEED = 1e6
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # as the API has them
AGENTS = ("codex", "claude", "opencode", "copilot", "qwen", "aider", "open-webui")  # as in `agents.AGENTS`
PROMPT = "count to 100, in words, one a line"


def _chat(parser: ArgumentParser) -> None:
    parser.add_argument(
        "prompt", nargs="?", help="the prompt to answer (default: an interactive chat, or standard input)"
    )
    add_endpoint(parser)
    parser.add_argument("--model", help="the model (default: the first that the server serves)")
    parser.add_argument("--instructions", help="system instructions for the model")
    parser.add_argument("--effort", choices=EFFORTS, help="reasoning effort")
    parser.add_argument(
        "--tools", metavar="FILE", help="JSON file with function tools; you type the outputs of their calls"
    )
    parser.add_argument(
        "--run-tools", metavar="COMMAND",
        help="a program that answers calls: JSON with `name` and `arguments` on standard input, the output on its own",
    )  # fmt: skip
    parser.add_argument(
        "--server-tools", metavar="NAMES",
        help="tools of the server: code_interpreter,shell,web_search,image_generation,mcp=LABEL,file_search=STORE",
    )  # fmt: skip
    parser.add_argument("--resume", metavar="ID", help="continue this response")
    parser.add_argument("--no-store", action="store_true", help="do not store the responses on the server")
    parser.add_argument("--no-reasoning", action="store_true", help="hide the reasoning")
    parser.add_argument("--show-id", action="store_true", help="in a pipe, print the response's id to standard error")


def _replay(parser: ArgumentParser) -> None:
    parser.add_argument("id", help="the response's id")
    add_endpoint(parser)
    parser.add_argument("--speed", type=_speed, default=1.0, metavar="N", help="speed factor (default: 1)")
    parser.add_argument(
        "--starting-after", type=int, metavar="NUMBER", help="start after the event with this sequence number"
    )
    parser.add_argument("--json", action="store_true", help="print each event as a line of JSON")


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
        "--concurrency",
        default="1,4,16",
        metavar="N,M",
        help="concurrency levels: requests at once (default: %(default)s)",
    )
    parser.add_argument(
        "--requests", type=int, default=32, metavar="N", help="requests per concurrency level (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        metavar="N",
        help="time limit of a concurrency level (default: %(default)s)",
    )
    parser.add_argument("--prompt", default=PROMPT, help="the prompt (default: %(default)r)")
    parser.add_argument(
        "--max-tokens", type=int, default=256, metavar="N", help="maximum tokens of an answer (default: %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON; - is standard output")
    parser.add_argument("--svg", metavar="FILE", help="write a chart as SVG")


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("agent", nargs="?", choices=AGENTS, metavar="AGENT", help=f"one of {', '.join(AGENTS)}")
    parser.add_argument(
        "--write", action="store_true", help="merge the settings into the agent's file, and keep a backup of it"
    )
    parser.add_argument("--url", help="the server's base URL (default: from the settings HOST and PORT)")
    parser.add_argument("--model", help="the model (default: the first that is served)")
    parser.add_argument(
        "--context", type=whole_number, metavar="TOKENS",
        help="context window of the model (default: from the settings or the server, else the agent's default)",
    )  # fmt: skip
    add_endpoint(parser, url_flag=False)


COMMANDS = (
    Command(
        "chat",
        "Chat with a model in the terminal; in a pipe, answer the prompt on standard input.",
        _chat,
        f"{HERE}.chat:run",
    ),
    Command("replay", "Replay a stored response at its average pace.", _replay, f"{HERE}.replay:run"),
    Command(
        "bench",
        "Benchmark a server: tokens per second, time to first token, gaps between events.",
        _bench,
        f"{HERE}.bench:run",
    ),
    Command(
        "configure",
        "Configure a coding agent for this server: print its settings, or write them into its file.",
        _configure,
        f"{HERE}.configure:run",
    ),
)
