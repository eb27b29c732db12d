"""Recording what pages show, and what is done on them: who asked, from where, in which session."""

from collections.abc import Sequence

from django.contrib.auth.models import AbstractUser
from django.http import HttpRequest

from responses_app.resources.audit.fields import Action, Actor, ActorKind, AuditEntry
from responses_app.resources.audit.store import record, record_view


def actor_of(request: HttpRequest, user: object = None) -> Actor:
    """Return who asks; `user` is one who is not, or no longer, the request's."""
    user = user or getattr(request, "user", None)
    address = str(request.META.get("REMOTE_ADDR") or "")
    if not isinstance(user, AbstractUser):
        return Actor(ActorKind.NOBODY, address=address)
    return Actor(ActorKind.USER, str(user.pk), user.get_username(), address)


def done(request: HttpRequest, action: Action, subject: str = "", *, project: str = "", **detail: object) -> None:
    """Record what the request's user does. Raises `AuditUnavailable`."""
    record(AuditEntry(actor_of(request), action, subject, project, detail))


def done_to(request: HttpRequest, action: Action, subjects: Sequence[tuple[str, str]]) -> None:
    """Record what the request's user does to several things: an id and a project each. Raises `AuditUnavailable`."""
    actor = actor_of(request)
    record(*(AuditEntry(actor, action, subject, project) for subject, project in subjects))


def viewed(request: HttpRequest, subject: str, *, project: str = "") -> None:
    """Record that content is shown, if somebody is signed in; once in a while. Raises `AuditUnavailable`.

    Where nobody has to sign in, it is not known who sees it.
    """
    if request.user.is_authenticated:
        session = str(request.session.session_key or "")
        entry = AuditEntry(actor_of(request), Action.CONTENT_VIEWED, subject, project, {"path": request.path})
        record_view(session, entry)
