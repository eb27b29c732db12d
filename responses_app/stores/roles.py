"""Roles of the users of the admin, in one table of what each may."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

APP = "responses_app"
SIGN_ON_BACKEND = "responses_app.admin.sign_on.backend.SignOnBackend"  # as Django's settings and sessions name it
ALL = "*"  # stands for all permissions that there are


class Role(StrEnum):
    """A role: the name of its group, too."""

    VIEWER = "viewer"
    AUDITOR = "auditor"
    OPERATOR = "operator"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class RolePermissions:
    """What a role may."""

    about: str  # in a sentence, for the docs
    permissions: Sequence[str]  # by their code names in this app; ALL for every one of every app


_LISTED = ("response", "conversation", "storedfile", "skillversion", "batch", "project", "worker", "webhookdelivery")
_VIEWS = tuple(f"view_{model}" for model in _LISTED)
ROLES: Mapping[Role, RolePermissions] = {
    Role.VIEWER: RolePermissions(
        "Sees the dashboard, usage, the lists, and the figures and timeline of each response. Sees no content.",
        _VIEWS,
    ),
    Role.AUDITOR: RolePermissions(
        "Sees what a viewer sees, all content, and the audit trail. Changes nothing.",
        (*_VIEWS, "see_content", "view_auditrow"),
    ),
    Role.OPERATOR: RolePermissions(
        "Sees what a viewer sees. Creates and revokes API keys, revokes admin keys, changes limits and projects, "
        "manages webhooks, cancels and deletes responses, deletes conversations. Sees no content.",
        (
            *_VIEWS,
            *("change_response", "delete_response", "delete_conversation"),
            *("view_apikey", "add_apikey", "change_apikey", "view_adminkey", "change_adminkey", "change_project"),
            *("view_webhookendpoint", "change_webhookendpoint", "change_webhookdelivery"),
        ),
    ),
    Role.ADMIN: RolePermissions(
        "Does everything: also users, groups and the playground, in all projects.",
        (ALL,),
    ),
}
