"""`respsite manage create_key`: make an API key and print it, this once."""

import re
from argparse import ArgumentTypeError
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management import CommandError, CommandParser
from django.db import transaction

from responses_app.management.database import DatabaseCommand, check_can_be_spent, limit_number, note
from responses_app.models import ID_LENGTH
from responses_app.protocol.api_keys import DEFAULT_PROJECT, PROJECT_NAME, SCOPES, names_in, unknown_scopes
from responses_app.protocol.rate_limits import LIMITS
from responses_app.resources.audit.fields import Action
from responses_app.resources.projects.callers import create_admin_key, create_key
from responses_app.resources.projects.fields import Unchangeable

_PERIODS = {"h": "hours", "d": "days", "w": "weeks"}


class Command(DatabaseCommand):
    """The key goes to standard output, what there is to say about it to standard error."""

    help = "Create an API key and print it, only once: the server stores its hash."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--project", type=project_name, help="project of the key (default: default)")
        parser.add_argument(
            "--admin",
            action="store_true",
            help="make an admin key (sk-admin-...): it opens /v1/organization, to manage projects and their keys, and "
            "nothing else",
        )
        parser.add_argument("--name", type=key_name, default="", help="label of the key")
        parser.add_argument(
            "--expires", type=moment, metavar="WHEN", help="when it expires: 12h, 30d, 8w, or a date: 2027-06-30"
        )
        parser.add_argument(
            "--scopes",
            type=scopes,
            default=[],
            metavar="A,B",
            help=f"what it may do (default: all except api.engine and api.metrics), of {', '.join(SCOPES)}",
        )
        parser.add_argument(
            "--models", type=names_in, default=[], metavar="A,B", help="models that it may use (default: all)"
        )
        for limit in LIMITS:
            parser.add_argument(
                f"--{limit.replace('_', '-')}",
                type=limit_number,
                metavar="N",
                help=f"limit of {limit.replace('_', ' ')}",
            )

    def handle(self, *args: Any, **options: Any) -> None:
        secret, key = _admin_key(options) if options["admin"] else _key(options)
        self.stdout.write(secret)
        until = f", until {options['expires']:%Y-%m-%d %H:%M} UTC" if options["expires"] else ""
        self.stderr.write(f"{key}{until}. Keep it: it is not shown again.")


def _key(options: Mapping[str, Any]) -> tuple[str, str]:
    """Make a key of a project; return it, and what it is."""
    check_can_be_spent(options["monthly_spend_cents"])
    limits = {limit: options[limit] for limit in LIMITS}
    fields = {"name": options["name"], "scopes": options["scopes"], "allowed_models": options["models"], **limits}
    try:
        with transaction.atomic():
            secret, row = create_key(options["project"] or DEFAULT_PROJECT, expires_at=options["expires"], **fields)
            note(Action.KEY_CREATED, [(row.pk, row.project_id)])
    except Unchangeable as problem:
        raise CommandError(problem.error.message) from None
    return secret, f"{row.pk} of project {row.project_id}"


def _admin_key(options: Mapping[str, Any]) -> tuple[str, str]:
    """Make an admin key; return it, and what it is. Raises `CommandError` for what such a key does not have."""
    given = [name for name in ("project", "scopes", "models", *LIMITS) if options[name] not in (None, [])]
    if given:
        raise CommandError(
            f"An admin key is of no project and has no scopes and limits: leave out --{given[0].replace('_', '-')}, "
            "or --admin."
        )
    with transaction.atomic():
        secret, row = create_admin_key(options["name"], options["expires"])
        note(Action.KEY_CREATED, [(row.pk, "")])
    return secret, f"{row.pk}, an admin key"


def project_name(text: str) -> str:
    """Read a project's name. Raises `ArgumentTypeError`."""
    if len(text) > ID_LENGTH or not re.fullmatch(PROJECT_NAME, text):
        raise ArgumentTypeError(f"letters, digits, '.', '_' and '-', at most {ID_LENGTH}")
    return text


def key_name(text: str) -> str:
    """Read a key's name. Raises `ArgumentTypeError`."""
    if len(text) > 100 or not text.isprintable():
        raise ArgumentTypeError("at most 100 printable characters")
    return text


def moment(text: str) -> datetime:
    """Read a time in the future: so many hours, days or weeks from now, or a date. Raises `ArgumentTypeError`."""
    accepted = "a time in the future: 12h, 30d, 8w, or a date, 2027-06-30"
    # "12h", "30d" or "8w".
    if match := re.fullmatch(r"(\d{1,5})([hdw])", text):
        number, period = match.groups()
        at = datetime.now(UTC) + timedelta(**{_PERIODS[period]: int(number)})
    else:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise ArgumentTypeError(accepted) from None
        # A date without a zone is one of UTC, as all that is shown.
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
    if at <= datetime.now(UTC):
        raise ArgumentTypeError(accepted)
    return at


def scopes(text: str) -> list[str]:
    """Read scopes. Raises `ArgumentTypeError` for what is not one."""
    named = names_in(text)
    unknown = unknown_scopes(named)
    if unknown:
        raise ArgumentTypeError(f"{unknown[0]} is not a scope: take some of {', '.join(SCOPES)}")
    return named
