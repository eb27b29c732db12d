"""`Setups`: the named setups of projects, in Django's database."""

from collections.abc import Sequence

from django.db.models import IntegerField, Sum
from django.db.models.functions import Length

from responses_app.kit.clock import utc
from responses_app.kit.columns import json_text
from responses_app.kit.errors import StoreError
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import Table, reads, writes
from responses_app.protocol.errors import JsonObject
from responses_app.resources.setups.fields import MAX_SETUPS, MAX_TOGETHER
from responses_app.resources.setups.model import NamedSetup

CREATION_LOCK = 0x73657475  # the space of the locks of projects


class TooManySetups(StoreError):
    """A project has as many setups as it may have, or they would be larger than they may be together."""


class Setups(Table[NamedSetup, None]):
    """The named setups of projects. Every method raises `StoreError`."""

    model = NamedSetup
    unlimited = None

    @reads
    def all_of(self, project: str) -> Sequence[NamedSetup]:
        """Return all setups of a project, by their names."""
        # Sorted here: databases order texts in different ways.
        return sorted(self.rows(project)[:MAX_SETUPS], key=lambda row: row.name)

    @writes
    def put(self, project: str, name: str, setup: JsonObject, *, new_id: str, at: float) -> NamedSetup:
        """Keep a setup, or replace the one of its name, which keeps its id and `created_at`; return what is kept.

        `at` is the Unix time. Raises `TooManySetups`.
        """
        rows = NamedSetup.objects.using(self._using).filter(project=project)
        one_at_a_time(self._db, CREATION_LOCK, project)
        others = rows.exclude(name=name).aggregate(size=Sum(Length("setup", output_field=IntegerField())))
        if (others["size"] or 0) + len(json_text(setup)) > MAX_TOGETHER:
            raise TooManySetups(f"the setups of {project} are too large together")
        row = rows.filter(name=name).first()
        if row is None:
            if rows.count() >= MAX_SETUPS:
                raise TooManySetups(f"{project} has {MAX_SETUPS} setups already")
            row = NamedSetup(id=new_id, project=project, name=name, created_at=utc(at))
        row.setup, row.updated_at = setup, utc(at)
        row.save(using=self._using)
        return row
