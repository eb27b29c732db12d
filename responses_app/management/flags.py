"""The flags of `serve`: older names of settings. Imports no Django, so that help and completion are there at once."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

FLAGS = {  # older names, and the settings they stand for
    "--host": "HOST",
    "--port": "PORT",
    "--workers": "WORKERS",
    "--max-websocket-connections": "MAX_WEBSOCKET_CONNECTIONS",
    "--responses-ping-interval-seconds": "RESPONSES_PING_INTERVAL_SECONDS",
    "--responses-session-ttl": "RESPONSES_SESSION_TTL",
    "--responses-max-active-sessions": "RESPONSES_MAX_ACTIVE_SESSIONS",
    "--responses-store-ttl": "RESPONSES_STORE_TTL",
    "--responses-store-max-entries": "RESPONSES_STORE_MAX_ENTRIES",
    "--responses-store-max-bytes": "RESPONSES_STORE_MAX_BYTES",
    "--max-tool-output-bytes": "RESPONSES_MAX_TOOL_OUTPUT_BYTES",
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
PRESETS = {  # older flags, and the presets of RESPONSES_DIALECT that they stand for
    "--compatibility-mode": "codex-turn",
    "--legacy-reasoning-events": "legacy-events",
}


def add_flags(parser: ArgumentParser) -> None:
    """Take the settings that have a flag."""
    for flag, variable in FLAGS.items():
        alone: dict[str, Any] = {"nargs": "?", "const": "on"} if flag in SWITCHES else {}
        parser.add_argument(flag, dest=variable, metavar="VALUE", help=f"same as {variable}=VALUE", **alone)
    parser.add_argument(
        "--disable-responses-store", dest="RESPONSES_STORE", action="store_const", const="off",
        help="same as RESPONSES_STORE=off",
    )  # fmt: skip
    for flag, preset in PRESETS.items():
        parser.add_argument(
            flag, dest="presets", action="append_const", const=preset, help=f"same as RESPONSES_DIALECT={preset}"
        )


def given_settings(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that the flags of a command line stand for."""
    given = {name: str(options[name]) for name in (*FLAGS.values(), "RESPONSES_STORE") if options.get(name)}
    if options.get("presets"):
        given["RESPONSES_DIALECT"] = ",".join(options["presets"])
    return given
