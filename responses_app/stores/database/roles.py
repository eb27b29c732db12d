"""Who may see and do what in the admin and on the pages beside it: what their permissions let users do, and roles.

A role is a group of Django's with the role's name. `make_roles` brings the groups to the table of `stores.roles`
whenever the database was migrated, and `apply_roles` gives a user roles.
"""

from collections.abc import Collection, Sequence
from typing import Any

from django.contrib.auth.management import create_permissions
from django.contrib.auth.models import Group, User
from django.db import connection, transaction

from responses_app.resources.audit.chain import append
from responses_app.resources.audit.fields import SERVER, Action, AuditEntry
from responses_app.stores.roles import ALL, APP, ROLES, Role

SEE = f"{APP}.view_response"  # that responses exist, and their figures: state, ids, model, key, times, tokens
SEE_CONTENT = f"{APP}.see_content"  # what people wrote, and what models answered
USE = f"{APP}.add_response"  # the API by a session: the playground
SEES_ALL_PROJECTS = f"{APP}.change_project"  # by a session, of the projects that the API shows one at a time
SCOPES = (  # what the pages need; keys and what they may do are made in the admin
    "api.model.read",
    "api.responses.read",
    "api.responses.write",
    "api.containers.read",
    "api.containers.write",
    "api.files.read",
    "api.files.write",  # what is attached in the playground
    "api.vector_stores.read",
    "api.vector_stores.write",
)


def sees_figures(user: Any) -> bool:
    """Whether a user may see the figures of what all projects have."""
    return _is_staff(user) and bool(user.has_perm(SEE))


def sees_content(user: Any) -> bool:
    """Whether a user may see what people wrote and what models answered, of what else they may see."""
    return _is_staff(user) and bool(user.has_perm(SEE_CONTENT))


def session_scopes(user: Any) -> Sequence[str]:
    """Return what a user may do over the API by a session, on pages of this server; none mean that it opens nothing.

    The API shows content, so it needs the permission to see that, too.
    """
    return SCOPES if sees_content(user) and user.has_perm(USE) else ()


def chooses_project(user: Any) -> bool:
    """Whether a user who comes in by a session may choose among all projects."""
    return bool(user.is_superuser or user.has_perm(SEES_ALL_PROJECTS))


def apply_roles(user: User, roles: Collection[str], *, address: str = "") -> bool:
    """Give a user exactly these roles, as who signed them on says; return whether that changed anything.

    Without a role they are not staff, and see no page. Other groups, permissions of their own and superusers stay as
    they are. A change is recorded in the audit trail. Raises `ValueError` for what is not a role.
    """
    wanted = {Role(role) for role in roles}
    with transaction.atomic():
        held = {Role(name) for name in user.groups.filter(name__in=list(Role)).values_list("name", flat=True)}
        is_staff = bool(wanted) or user.is_superuser
        if held == wanted and user.is_staff == is_staff:
            return False
        user.groups.remove(*Group.objects.filter(name__in=held - wanted))
        groups = list(Group.objects.filter(name__in=wanted - held))
        if len(groups) < len(wanted - held):
            raise RuntimeError("The group of a role is missing. Run `respsite manage migrate`, which makes it again.")
        user.groups.add(*groups)
        user.is_staff = is_staff
        user.save(update_fields=["is_staff"])
        detail = {"roles": sorted(wanted), "before": sorted(held), **({"address": address} if address else {})}
        append(connection, [AuditEntry(SERVER, Action.ROLES_CHANGED, user.get_username(), detail=detail)])
    return True


def make_roles(sender: Any, *, apps: Any, using: str, **kwargs: Any) -> None:
    """Bring the groups of the roles to the table; called for each app when a database was migrated."""
    try:
        groups, permissions = (apps.get_model("auth", name)._default_manager for name in ("Group", "Permission"))
    except LookupError:  # migrated in part, without users
        return
    # Django does so itself, but only after this for some apps.
    create_permissions(apps=apps, using=using, **kwargs)
    for role in ROLES if sender.label == APP else (Role.ADMIN,):
        named = permissions.using(using)
        if ALL not in ROLES[role].permissions:
            named = named.filter(content_type__app_label=APP, codename__in=ROLES[role].permissions)
        groups.using(using).get_or_create(name=str(role))[0].permissions.set(named)


def _is_staff(user: Any) -> bool:
    return bool(user.is_authenticated and user.is_active and user.is_staff)
