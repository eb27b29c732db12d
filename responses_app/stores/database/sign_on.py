"""Users who come by single sign-on: which of them somebody is, and how long their sessions last.

A user is found by what the provider calls them, never by a name or an address: those can change hands, and whoever
gets an address must not get the account with it. So nobody comes into a local account this way.
"""

import re
import secrets
import time
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth import BACKEND_SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import IntegrityError, transaction

from responses_app.models.sign_on import SignOnAccount
from responses_app.stores.roles import SIGN_ON_BACKEND

ENDS_AT = "oidc_id_token_expiration"  # in a session: when the provider is to be asked again, in Unix seconds
ID_TOKEN = "oidc_id_token"  # in a session: what the provider wants back when it is to end its own session
AT_ONCE = 100  # old sessions that are removed with one sign-in that begins
TRIES = 5  # to make a user: somebody else may take the name, or be the same person in another tab


def by_sign_on(session: Any) -> bool:
    """Whether a session of Django's was opened by single sign-on."""
    return bool(session.get(BACKEND_SESSION_KEY) == SIGN_ON_BACKEND)


def is_over(session: Any) -> bool:
    """Whether a session has to be renewed at the provider before it opens anything again."""
    return by_sign_on(session) and time.time() >= float(session.get(ENDS_AT) or 0)


def remove_old_sessions() -> None:
    """Remove some sessions whose time is over, so that those who begin to sign in do not fill the database."""
    old = Session.objects.filter(expire_date__lt=datetime.now(UTC)).values_list("pk", flat=True)[:AT_ONCE]
    Session.objects.filter(pk__in=list(old)).delete()


def user_of(issuer: str, subject: str) -> User | None:
    """Return the user whom the provider calls this; None where nobody has come by that name yet."""
    account = SignOnAccount.objects.filter(issuer=issuer, subject=subject).first()
    return None if account is None else User.objects.filter(pk=account.user_id).first()


def make_user(issuer: str, subject: str, *, name: str, email: str) -> User:
    """Return the user of somebody who comes for the first time: a new one without a password."""
    for _ in range(TRIES):
        try:
            with transaction.atomic():
                # An older version of the server, which knows no accounts, may have deleted the user alone.
                orphans = SignOnAccount.objects.filter(issuer=issuer, subject=subject)
                orphans.exclude(user_id__in=User.objects.values("pk")).delete()
                user = User.objects.create_user(_free_name(name), email=email)
                SignOnAccount.objects.create(user=user, issuer=issuer, subject=subject, created_at=datetime.now(UTC))
                return user
        except IntegrityError:
            if (known := user_of(issuer, subject)) is not None:
                return known
    raise IntegrityError(f"no user could be made for {name!r}")


def _free_name(name: str) -> str:
    """Return a user name that is like this one and that nobody has, a local user least of all."""
    plain = re.sub(r"[^\w.@+-]+", "-", User.normalize_username(name)).strip("-")[:140] or "user"
    return plain if not User.objects.filter(username__iexact=plain).exists() else f"{plain}-{secrets.token_hex(3)}"
