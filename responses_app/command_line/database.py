"""What commands over the database share: Django with the settings of the environment, and what they say of failures."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from responses_app.command_line.base.exits import CommandFailed


@contextmanager
def database() -> Iterator[None]:
    """Set Django up; an error of the database ends the command with one sentence."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "respsite.settings")
    import django

    django.setup(set_prefix=False)
    from django.db import DatabaseError

    try:
        yield
    except DatabaseError as error:
        reason = str(error).strip().partition("\n")[0]
        raise CommandFailed(
            f"the database cannot be used ({reason}). Check that it runs, what DATABASE_URL names, and that "
            "`respsite manage migrate` has been run."
        ) from None
