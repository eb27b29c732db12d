"""Users and groups: their changes on Django's own pages, and sign-ins, are recorded in the audit trail."""

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db.models import Model
from django.dispatch import receiver
from django.http import HttpRequest

from responses_app.admin.auditing import actor_of, done
from responses_app.resources.audit.fields import Action, Actor, ActorKind, AuditEntry, AuditUnavailable
from responses_app.resources.audit.store import record
from responses_app.stores.database.sign_on import by_sign_on


class Audited(admin.ModelAdmin):
    """Records the changes of users and groups on Django's own pages."""

    def log_addition(self, request: HttpRequest, obj: Model, message: Any) -> Any:
        """Record it, in the transaction of the change."""
        self._record(request, obj, "added")
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Model, message: Any) -> Any:
        """Record it, with the names of the fields."""
        parts = message if isinstance(message, list) else []
        changed = [part["changed"].get("fields", []) for part in parts if isinstance(part, dict) and "changed" in part]
        self._record(request, obj, "changed", fields=[name for names in changed for name in names][:50])
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        """Record them, before they are deleted."""
        for each in queryset:
            self._record(request, each, "deleted")
        return super().log_deletions(request, queryset)

    def _record(self, request: HttpRequest, obj: Model, what: str, **more: object) -> None:
        kind = str(self.opts.verbose_name)
        done(request, Action.ADMIN_CHANGED, str(obj), kind=kind, id=str(obj.pk), what=what, **more)


class AuditedUserAdmin(Audited, UserAdmin):
    """Django's page of users, whose changes are recorded."""


class AuditedGroupAdmin(Audited, GroupAdmin):
    """Django's page of groups, whose changes are recorded."""


admin.site.unregister((User, Group))
admin.site.register(User, AuditedUserAdmin)
admin.site.register(Group, AuditedGroupAdmin)


@receiver(user_logged_in)
def _signed_in(request: HttpRequest, user: Any, **kwargs: Any) -> None:
    try:
        detail = {"by": "single sign-on"} if by_sign_on(request.session) else {}
        record(AuditEntry(actor_of(request, user), Action.SIGNED_IN, user.get_username(), detail=detail))
    except AuditUnavailable:
        request.session.flush()  # else the session would be kept with the page that says so
        raise


@receiver(user_logged_out)
def _signed_out(request: HttpRequest, user: Any, **kwargs: Any) -> None:
    if user is not None:
        record(AuditEntry(actor_of(request, user), Action.SIGNED_OUT, user.get_username()))


@receiver(user_login_failed)
def _sign_in_failed(credentials: dict[str, Any], request: Any = None, **kwargs: Any) -> None:
    """Record a failure; of those while it is locked none, so that nobody fills the trail by guessing on.

    django-axes hears of it first, and marks the request.
    """
    is_locked = bool(getattr(request, "axes_locked_out", False))
    if request is None or (is_locked and getattr(request, "axes_failures_since_start", None) is None):
        return
    address = actor_of(request).address
    detail = {"locked": True} if is_locked else {}
    name = str(credentials.get("username") or "")
    record(AuditEntry(Actor(ActorKind.NOBODY, address=address), Action.SIGN_IN_FAILED, name, detail=detail))
