"""The table of notes."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Make it."""

    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            name="Note",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("project", models.CharField(max_length=64)),
                ("text", models.TextField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
    ]
