"""Roles: the groups of Django's that they are, who is given them, and what the migration left everybody."""

from importlib import import_module
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.db import connection

from responses_app.resources.audit.model import AuditRow
from responses_app.stores.database.roles import apply_roles, sees_content, sees_figures, session_scopes
from responses_app.stores.roles import ROLES, Role

pytestmark = pytest.mark.django_db
MIGRATION = import_module("responses_app.migrations.0028_see_content")
EDITOR = SimpleNamespace(connection=connection)


def with_roles(*roles: str) -> User:
    """Return a user with these roles, read anew."""
    user = User.objects.create_user("-".join(roles) or "nobody")
    apply_roles(user, roles)
    return User.objects.get(pk=user.pk)


@pytest.mark.parametrize("role", [role for role in Role if role != Role.ADMIN])
def test_a_group_has_what_the_table_says(role: Role) -> None:
    has = Group.objects.get(name=role).permissions.values_list("content_type__app_label", "codename")
    assert set(has) == {("responses_app", name) for name in ROLES[role].permissions}


def test_the_admin_has_all_permissions_of_all_apps() -> None:
    assert Group.objects.get(name="admin").permissions.count() == Permission.objects.count() > 50


def test_migrating_brings_a_group_back_to_the_table() -> None:
    Group.objects.get(name="viewer").permissions.set(Permission.objects.filter(codename="see_content"))
    Group.objects.get(name="auditor").delete()
    call_command("migrate", verbosity=0)
    test_a_group_has_what_the_table_says(Role.VIEWER)
    test_a_group_has_what_the_table_says(Role.AUDITOR)


@pytest.mark.parametrize(
    ("roles", "figures", "content", "scopes"),
    [
        ((), False, False, 0),
        (("viewer",), True, False, 0),
        (("operator",), True, False, 0),
        (("auditor",), True, True, 0),
        (("auditor", "operator"), True, True, 0),
        (("admin",), True, True, 9),
    ],
)
def test_who_sees_what(roles: tuple[str, ...], figures: bool, content: bool, scopes: int) -> None:
    user = with_roles(*roles)
    assert (sees_figures(user), sees_content(user), len(session_scopes(user))) == (figures, content, scopes)
    user.is_active = False
    assert (sees_figures(user), sees_content(user), len(session_scopes(user))) == (False, False, 0)


def test_roles_are_taken_away_and_recorded_and_nothing_else_is_touched() -> None:
    user = User.objects.create_user("ada")
    own = Group.objects.create(name="kitchen")
    user.groups.add(own)
    assert apply_roles(user, ["auditor", "operator"])
    assert not apply_roles(user, ["operator", "auditor"])
    assert apply_roles(user, ["viewer"], address="10.0.0.7")
    assert (set(user.groups.values_list("name", flat=True)), user.is_staff) == ({"kitchen", "viewer"}, True)
    assert apply_roles(user, [])
    assert (list(user.groups.all()), user.is_staff) == ([own], False)
    details = AuditRow.objects.filter(action="roles_changed", subject="ada").order_by("number")
    assert [row.detail for row in details] == [
        '{"roles":["auditor","operator"],"before":[]}',
        '{"roles":["viewer"],"before":["auditor","operator"],"address":"10.0.0.7"}',
        '{"roles":[],"before":["viewer"]}',
    ]


def test_a_superuser_without_roles_stays_one() -> None:
    root = User.objects.create_superuser("root")
    assert not apply_roles(root, [])
    assert root.is_staff


@pytest.mark.parametrize("role", ["root", "", "Viewer"])
def test_what_is_no_role_is_refused(role: str) -> None:
    user = User.objects.create_user("ada")
    with pytest.raises(ValueError, match="is not a valid Role"):
        apply_roles(user, ["viewer", role])
    assert not user.groups.exists()


@pytest.mark.parametrize(
    ("had", "keeps"),
    [("view_response", True), ("view_conversation", True), ("add_response", True), ("view_worker", False)],
)
def test_whoever_saw_content_keeps_it(had: str, keeps: bool) -> None:
    permission = Permission.objects.get(codename=had)
    user, group = User.objects.create_user("ada"), Group.objects.create(name="old")
    user.user_permissions.add(permission)
    group.permissions.add(permission)
    MIGRATION.keep_content(apps, EDITOR)
    assert user.user_permissions.filter(codename="see_content").exists() is keeps
    assert group.permissions.filter(codename="see_content").exists() is keeps


def test_a_group_that_had_the_name_of_a_role_gets_another_name() -> None:
    Group.objects.filter(name="admin").delete()
    old = Group.objects.create(name="admin")
    MIGRATION.make_room(apps, EDITOR)
    old.refresh_from_db()
    assert old.name == "admin (before roles)"
