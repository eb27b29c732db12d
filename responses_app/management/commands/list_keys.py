"""`respsite manage list_keys`: which API keys there are."""

from datetime import UTC, datetime
from typing import Any

from django.core.management import CommandParser

from responses_app.management.database import DatabaseCommand
from responses_app.resources.projects.model import AdminKey, ApiKey

MAX_LISTED = 10_000


class Command(DatabaseCommand):
    """A line a key, the newest last."""

    help = "List the API keys, one per line: id, beginning, project, state, last use, name. Admin keys come last."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--project", help="only this project")

    def handle(self, *args: Any, **options: Any) -> None:
        keys = ApiKey.objects.order_by("created_at")
        if options["project"]:
            keys = keys.filter(project=options["project"])
        admin_keys = AdminKey.objects.none() if options["project"] else AdminKey.objects.order_by("created_at")
        for row in (*keys[:MAX_LISTED], *admin_keys[:MAX_LISTED]):
            project = row.project_id if isinstance(row, ApiKey) else "(admin key)"
            used = f"{row.last_used_at:%Y-%m-%d %H:%M}" if row.last_used_at else "never used"
            state = row.state(datetime.now(UTC))
            self.stdout.write("\t".join([row.pk, f"{row.prefix}…", project, state, used, row.name]))
