"""The flags of `serve`: settings, under names that vLLM's `serve` has, or older versions of this program.

Imports neither Django nor the settings, so that completion and a start are there at once; `explain` reads the settings,
for those who ask for help. A flag is described by the sentence of its setting. `suggest` lets any parser name the flag
or the command that was perhaps meant by one that does not exist.
"""

import json
import os
import re
import sys
from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

FLAGS = {  # flags with a value, and the settings they stand for
    "--model": "MODEL",
    "--served-model-name": "MODEL_NAME",
    "--engine": "ENGINE",
    "--engine-url": "ENGINE_URL",
    "--tokenizer": "TOKENIZER",
    "--reasoning-parser": "REASONING_PARSER",
    "--tool-call-parser": "TOOL_PARSER",
    "--host": "HOST",
    "--port": "PORT",
    "--workers": "WORKERS",
    "--max-websocket-connections": "MAX_WEBSOCKET_CONNECTIONS",
    "--reconnect-grace-seconds": "RECONNECT_GRACE_SECONDS",
    "--responses-ping-interval-seconds": "RESPONSES_PING_INTERVAL_SECONDS",
    "--responses-session-ttl": "RESPONSES_SESSION_TTL",
    "--responses-max-active-sessions": "RESPONSES_MAX_ACTIVE_SESSIONS",
    "--responses-store-ttl": "RESPONSES_STORE_TTL",
    "--responses-store-max-entries": "RESPONSES_STORE_MAX_ENTRIES",
    "--responses-store-max-bytes": "RESPONSES_STORE_MAX_BYTES",
    "--max-tool-output-bytes": "RESPONSES_MAX_TOOL_OUTPUT_BYTES",
    "--responses-tool-mode": "RESPONSES_TOOL_MODE",
    "--responses-tool-timeout": "RESPONSES_TOOL_TIMEOUT",
    "--enable-computer-call": "ENABLE_COMPUTER_CALL",
    "--image-service-config": "IMAGE_SERVICE_URL",
    "--responses-compatibility-mode": "RESPONSES_COMPATIBILITY_MODE",
    "--responses-default-service-tier": "RESPONSES_DEFAULT_SERVICE_TIER",
    "--responses-allowed-service-tiers": "RESPONSES_ALLOWED_SERVICE_TIERS",
    "--reasoning-encryption-key": "REASONING_ENCRYPTION_KEYS",
    "--default-openai-organization": "DEFAULT_OPENAI_ORGANIZATION",
    "--default-openai-version": "DEFAULT_OPENAI_VERSION",
}
SWITCHES = ("--responses-compatibility-mode", "--enable-computer-call")  # that need no value: `on` is meant then
ENGINE_FLAGS: Mapping[str, type] = {  # options of vLLM with a value: entries of ENGINE_OPTIONS
    "--max-model-len": int,
    "--max-num-seqs": int,
    "--gpu-memory-utilization": float,
    "--tensor-parallel-size": int,
    "--dtype": str,
    "--quantization": str,
}
ENGINE_SWITCHES = {  # those without one
    "--enable-prefix-caching": True,
    "--no-enable-prefix-caching": False,
    "--enforce-eager": True,
    "--trust-remote-code": True,
}
REFUSED = {  # flags of vLLM's `serve` that this server cannot carry out, and what to do instead
    "--api-key": "keys are made with `respsite manage create_key --project NAME`; AUTH=on asks everybody for one",
    "--chat-template": "the template is the one in the tokenizer's folder: name a folder with --tokenizer",
    "--ssl-keyfile": "TLS is the work of a proxy in front; BEHIND_PROXY=tls says that there is one",
    "--ssl-certfile": "TLS is the work of a proxy in front; BEHIND_PROXY=tls says that there is one",
}
COMPATIBLE = "one response id for a whole turn: RESPONSES_DIALECT=codex-turn (see Dialects)"
TURNS_AND_TODAY = "turn-id,completed-calls"  # `codex-turn` without its names of events
LEGACY = (
    "the events `response.reasoning_text.*`, which are the default: RESPONSES_DIALECT=openai; with "
    f"--compatibility-mode: RESPONSES_DIALECT={TURNS_AND_TODAY} (see Dialects)"
)
MODEL = "model to serve, as --model sets it; unless ENGINE, ENGINE_URL or MODELS is set, vLLM inside respsite loads it"
MORE = "Every setting is an environment variable, too; ENGINE_OPTIONS takes all other options of vLLM, as JSON."


def add_flags(parser: ArgumentParser) -> None:
    """Take the model, and the settings that have a flag."""
    parser.epilog = MORE
    model = parser.add_mutually_exclusive_group()
    model.add_argument("model_tag", nargs="?", metavar="MODEL", help=MODEL)
    for flag, variable in FLAGS.items():
        alone: dict[str, Any] = {"nargs": "?", "const": "on"} if flag in SWITCHES else {}
        group = model if variable == "MODEL" else parser
        group.add_argument(flag, dest=variable, metavar="VALUE", help=f"same as {variable}=VALUE", **alone)
    parser.add_argument(
        "--disable-responses-store", dest="RESPONSES_STORE", action="store_const", const="off",
        help="store no responses, whatever requests ask for: RESPONSES_STORE=off",
    )  # fmt: skip
    parser.add_argument("--compatibility-mode", action="store_true", help=COMPATIBLE)
    parser.add_argument("--legacy-reasoning-events", action="store_true", help=LEGACY)
    for flag, kind in ENGINE_FLAGS.items():
        option = _option(flag)
        parser.add_argument(flag, type=kind, metavar="VALUE", help=f"vLLM's own: `{option}` in ENGINE_OPTIONS")
    for flag, value in ENGINE_SWITCHES.items():
        about = f"vLLM's own: `{_option(flag)}` in ENGINE_OPTIONS, {str(value).lower()}"
        parser.add_argument(flag, dest=_option(flag), action="store_const", const=value, help=about)
    for flag in REFUSED:
        parser.add_argument(flag, action=_Refusal, nargs="?", dest=SUPPRESS, help=SUPPRESS)


def explain(parser: ArgumentParser) -> None:
    """Say of each flag what its setting does, and its default: as the settings themselves say it."""
    # Positional arguments have no option strings: "" stands for theirs.
    actions = [each for each in parser._actions if FLAGS.get((*each.option_strings, "")[0]) == each.dest]
    if not actions:
        return
    from responses_app.settings.conf import table

    rows = {row.name: row for row in table()}
    for action in actions:
        row = rows[action.dest]
        # argparse formats help texts with "%".
        action.help = f"{row.name}: {row.about} (default: {row.default})".replace("%", "%%")


def given_settings(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that the flags of a command line stand for, beside those there are."""
    variables = {name: str(options[name]) for name in (*FLAGS.values(), "RESPONSES_STORE") if options.get(name)}
    if dialect := _dialect(options):
        variables["RESPONSES_DIALECT"] = dialect
    if model := options.get("model_tag") or options.get("MODEL"):
        # What is given counts before what the engine of a named model would be.
        variables = {**_engine({**environ, **variables}), **variables, "MODEL": model}
    names = map(_option, (*ENGINE_FLAGS, *ENGINE_SWITCHES))
    if engine := {name: options[name] for name in names if options.get(name) is not None}:
        variables["ENGINE_OPTIONS"] = _merged(environ.get("ENGINE_OPTIONS", ""), engine)
    return variables


def start_over(options: Mapping[str, Any]) -> None:
    """Begin this program anew with the flags of a command line as settings; return where there are none.

    Settings are read once, at the start. And so they stand in the environment of the process, which only its user can
    read, and not in its command line, which all can.
    """
    if variables := given_settings(options, os.environ):
        os.environ.update(variables)
        # The same process: its id and its terminal stay, and whoever supervises it sees nothing.
        os.execv(sys.executable, [sys.executable, sys.argv[0], "serve"])


class _Refusal(Action):
    """A flag of vLLM's that this server cannot carry out."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> NoReturn:
        parser.error(f"{option} is not a flag of this server: {REFUSED[option or '']}.")


def _option(flag: str) -> str:
    """Return the name that vLLM's engine has for an option."""
    return flag.removeprefix("--").removeprefix("no-").replace("-", "_")


def _dialect(options: Mapping[str, Any]) -> str | None:
    has_turns, has_today = options.get("compatibility_mode"), options.get("legacy_reasoning_events")
    if has_turns:
        return TURNS_AND_TODAY if has_today else "codex-turn"
    return "openai" if has_today else None


def _engine(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the engine of a model that is named, where nothing says which it is."""
    if environ.get("MODELS") or environ.get("MODELS_FILE") or environ.get("ENGINE"):
        return {}
    kind = "vllm-server" if environ.get("ENGINE_URL") else "vllm"
    return {"ENGINE": kind, "MODEL_FORMAT": environ.get("MODEL_FORMAT") or "auto"}


def _merged(text: str, options: Mapping[str, Any]) -> str:
    """Add to what ENGINE_OPTIONS says. What is not a JSON object stays, and stops the start with its sentence."""
    try:
        known = json.loads(text or "{}")
    except ValueError:
        return text
    return json.dumps({**known, **options}) if isinstance(known, dict) else text


_CHOICE = re.compile(r"invalid choice: '([^']*)'")  # as argparse says it


def meant(word: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest of what is known; nothing if none is near."""
    near = get_close_matches(word, known, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def suggest(parser: ArgumentParser) -> None:
    """Let a parser say which of its flags and choices was perhaps meant, and refuse a flag that it does not know.

    This is done to the parser itself: those of `respsite manage` are made by Django.
    """
    parse, fail = parser.parse_known_args, parser.error
    given: Sequence[str] = ()

    def strict(args: Any = None, namespace: Any = None) -> tuple[Namespace, list[str]]:
        nonlocal given
        given = args or ()
        found, unknown = parse(args, namespace)
        if unknown:
            # Here, and not in the parser of the whole program: what is shown is the usage of this command.
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(message: str) -> NoReturn:
        fail(f"{message}{_hint(parser, message, given)}")

    parser.parse_known_args = strict  # type: ignore[method-assign, assignment]
    parser.error = error  # type: ignore[method-assign]


def _hint(parser: ArgumentParser, message: str, given: Sequence[str]) -> str:
    if choice := _CHOICE.search(message):
        known = [str(each) for action in parser._actions for each in action.choices or ()]
        return _sentence(meant(choice[1], known))
    every = [flag for action in parser._actions for flag in action.option_strings]
    shown = [flag for action in parser._actions if action.help != SUPPRESS for flag in action.option_strings]
    for word in given:
        flag = word.partition("=")[0]
        if flag == "--":
            break
        # Django's parsers take the beginning of a flag, too.
        if flag.startswith("--") and not any(each.startswith(flag) for each in every):
            return _sentence(meant(flag, shown))
    return ""


def _sentence(question: str) -> str:
    return f".{question}" if question else ""
