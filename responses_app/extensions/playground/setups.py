"""Setups that a project keeps under names, which the API calls prompts: their fields, and what keeps them."""

from collections.abc import Mapping, Sequence
from typing import Literal, Self

from django.db.models import IntegerField, Sum
from django.db.models.functions import Length
from typing_extensions import TypedDict

from engine import orjson
from responses_app.kit.clock import unix, utc
from responses_app.kit.columns import json_text
from responses_app.kit.errors import StoreError
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import Table, reads, writes
from responses_app.models.playground import NamedSetup
from responses_app.protocol.errors import ApiError, JsonObject, invalid_value, not_found
from responses_app.protocol.fields import ClientModel, Text, validate
from responses_app.protocol.json_text import json_size
from responses_app.wiring.site import Site

CREATION_LOCK = 0x73657475  # the space of the locks of projects
MAX_SETUPS = 200  # of a project
MAX_TOGETHER = 4 << 20  # characters of JSON of all of a project's, since they are read in one list
MAX_NAME = 100  # characters
MAX_SETUP_BYTES = 256 << 10  # of a setup, as JSON


class PlaygroundPrompt(TypedDict):
    """A setup of the playground under a name."""

    id: str
    object: Literal["playground.prompt"]
    name: str
    setup: JsonObject
    created_at: int
    updated_at: int


class PlaygroundPromptList(TypedDict):
    """All setups of a project, by their names. The ids of an empty list are empty texts."""

    object: Literal["list"]
    data: list[PlaygroundPrompt]
    first_id: str
    last_id: str
    has_more: bool


class DeletedPlaygroundPrompt(TypedDict):
    """A setup is gone."""

    id: str
    object: Literal["playground.prompt.deleted"]
    deleted: Literal[True]


class NewPlaygroundPrompt(ClientModel):
    """A setup to keep under a name; one of the same name is replaced."""

    name: Text
    setup: JsonObject


def parse_prompt(data: Mapping[str, object]) -> tuple[str, JsonObject]:
    """Return a setup with its name. Raises `ApiError`."""
    fields = validate(NewPlaygroundPrompt, data)
    name = " ".join(fields.name.split())
    if not 0 < len(name) <= MAX_NAME:
        raise invalid_value("name", f"a text of {len(name)} characters. A name has 1 to {MAX_NAME}.")
    json_size({"setup": fields.setup})  # raises for what no answer could say again
    size = len(orjson.text_kept(fields.setup).encode())
    if size > MAX_SETUP_BYTES:
        raise invalid_value("setup", f"an object of {size} bytes as JSON. A setup has at most {MAX_SETUP_BYTES}.")
    return name, fields.setup


def prompt_not_found(prompt_id: str) -> ApiError:
    """The project has no such setup (404)."""
    return not_found(f"No prompt found with id '{prompt_id[:80]}'.", code="prompt_not_found")


def shown(row: NamedSetup) -> PlaygroundPrompt:
    """Return a setup as clients see it."""
    return {
        "id": row.pk,
        "object": "playground.prompt",
        "name": row.name,
        "setup": row.setup,
        "created_at": unix(row.created_at),
        "updated_at": unix(row.updated_at),
    }


class TooManySetups(StoreError):
    """A project has as many setups as it may have, or they would be larger than they may be together."""


class Setups(Table[NamedSetup, None]):
    """The named setups of projects. Every method raises `StoreError`."""

    model = NamedSetup
    unlimited = None

    @classmethod
    def of(cls, site: Site) -> Self:
        """Return those of a server."""
        return cls(now=site.clock, retentions=site.retentions, shared=site.shared)

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
