"""A permission to see content apart from the one to see that responses exist; and room for the groups of the roles.

Whoever could see content before keeps it: the users and groups with one of the permissions that showed some.
"""

from django.db import migrations

SHOWED = ("view_response", "view_conversation", "view_storedfile", "view_skillversion", "add_response")


def keep_content(apps, schema_editor):
    using = schema_editor.connection.alias
    models = [apps.get_model("auth", name) for name in ("Permission", "Group", "User")]
    permissions, *owners = (model._default_manager.using(using) for model in models)
    showed = permissions.filter(content_type__app_label="responses_app", codename__in=SHOWED)
    kind = apps.get_model("contenttypes", "ContentType")._default_manager.using(using)
    of_responses = kind.filter(app_label="responses_app", model="response").first()
    if of_responses is None:  # a new database: nobody has a permission, and Django makes this one after migrating
        return
    name = "Can see what people wrote and what models answered"
    see_content, _ = permissions.get_or_create(
        content_type=of_responses, codename="see_content", defaults={"name": name}
    )
    for group in owners[0].filter(permissions__in=showed).distinct():
        group.permissions.add(see_content)
    for user in owners[1].filter(user_permissions__in=showed).distinct():
        user.user_permissions.add(see_content)


def make_room(apps, schema_editor):
    """Give groups that have the name of a role another one, so that nobody gets a role by that."""
    groups = apps.get_model("auth", "Group")._default_manager.using(schema_editor.connection.alias)
    for group in groups.filter(name__in=("viewer", "auditor", "operator", "admin")):
        group.name = f"{group.name} (before roles)"
        group.save()


class Migration(migrations.Migration):

    dependencies = [
        ('responses_app', '0027_retention'),
        ('auth', '0012_alter_user_first_name_max_length'),
        ('contenttypes', '0002_remove_content_type_name'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='response',
            options={'permissions': [('see_content', 'Can see what people wrote and what models answered')]},
        ),
        migrations.RunPython(keep_content, migrations.RunPython.noop),
        migrations.RunPython(make_room, migrations.RunPython.noop),
    ]
