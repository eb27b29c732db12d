"""`respsite manage list_keys`: which API keys there are."""

from datetime import UTC, datetime
from typing import Any

from django.core.management import CommandParser

from responses_app.management.database import DatabaseCommand
from responses_app.models import ApiKey

MAX_LISTED = 10_000


class Command(DatabaseCommand):
    """A line a key, the newest last."""

    help = "List the API keys, one per line: id, beginning, project, state, last use, name."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take whose."""
        parser.add_argument("--project", help="only this project")

    def handle(self, *args: Any, **options: Any) -> None:
        """List them."""
        keys = ApiKey.objects.order_by("created_at")
        if options["project"]:
            keys = keys.filter(project=options["project"])
        for row in keys[:MAX_LISTED]:
            used = f"{row.last_used_at:%Y-%m-%d %H:%M}" if row.last_used_at else "never used"
            state = row.state(datetime.now(UTC))
            self.stdout.write("\t".join([row.pk, f"{row.prefix}…", row.project_id, state, used, row.name]))
