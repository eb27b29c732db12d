"""What commands say when they cannot go on."""

from django.core.management import CommandError

from responses_app.models import ApiKey
from responses_app.protocol.api_keys import START, digest_of


def database_failed(error: Exception) -> SystemExit:
    """Return the end of a command whose database does not work, in one sentence."""
    reason = str(error).strip().partition("\n")[0]
    return SystemExit(
        f"respsite: the database cannot be used ({reason}). Check that it runs, what DATABASE_URL names, and that "
        "`respsite manage migrate` has been run."
    )


def key_named(text: str) -> ApiKey:
    """Return the key that is meant by its id, by itself, or by its beginning as shown. Raises `CommandError`."""
    rows = list(ApiKey.objects.filter(pk=text)[:1])
    if not rows and text.startswith(START):
        rows = list(ApiKey.objects.filter(digest=digest_of(text))[:1] or ApiKey.objects.filter(prefix=text)[:2])
    if not rows:
        raise CommandError(f"There is no key {text[:12]}. `respsite manage list_keys` shows those there are.")
    if len(rows) > 1:
        raise CommandError(f"Several keys begin with {text}: take an id, as {rows[0].pk} or {rows[1].pk}.")
    return rows[0]
