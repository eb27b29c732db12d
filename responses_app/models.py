"""What is kept of responses.

A `Response` is what clients retrieve. A `ChainPart` is its part of a chain, a row of its own: forks share the parts
before them, and nothing is copied per turn. A `SampledItem` is an output item with the tokens it was sampled as, found
by its id when a client replays it. Ids are the API's own, so a part and its response have the same one.

No foreign key is a constraint of the database: a part outlives its response, whose descendants go on with it. Their
indexes are declared in `Meta`, since Django gives an indexed text column a second index on PostgreSQL, for LIKE.
"""

import json
from typing import Any, ClassVar

import orjson
from django.db import models

ID_LENGTH = 64


def json_text(value: object) -> str:
    """Write JSON as text. NaN and infinities, which JSON does not have, become null.

    Raises `TypeError` or `ValueError` for what is no JSON.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # lone surrogates and integers of more than 64 bits, which orjson refuses
        return json.dumps(value, allow_nan=False, separators=(",", ":"))


class JSONTextField(models.TextField):
    """JSON, kept as the text it was written as; read and written, never searched.

    PostgreSQL's jsonb refuses NUL characters and lone surrogates, which models and clients do send, and reorders keys.
    In JSON text both are escapes, so every response comes back as it went out.
    """

    description = "JSON as text"

    def get_prep_value(self, value: Any) -> str | None:
        return None if value is None else json_text(value)

    def from_db_value(self, value: str | None, expression: object, connection: object) -> Any:
        return None if value is None else json.loads(value)

    def to_python(self, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    def value_to_string(self, obj: models.Model) -> str:
        return json_text(self.value_from_object(obj))


class Response(models.Model):
    """A finished response; `body` is the object its terminal event carried."""

    id = models.CharField(primary_key=True, max_length=ID_LENGTH)
    project = models.CharField(max_length=64, default="default")
    status = models.CharField(max_length=16)
    model = models.CharField(max_length=256)
    created_at = models.DateTimeField()
    body = JSONTextField()
    input_items = JSONTextField(default=list)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["project", "created_at"], name="response_project_created")]

    def __str__(self) -> str:
        return self.id


class ChainPart(models.Model):
    """One response's part of a chain, see `protocol.chain.LinkTokens`; `tokens` and `lengths` are little-endian 32-bit
    numbers, `calls` the function calls in it (call_id → name)."""

    id = models.CharField(primary_key=True, max_length=ID_LENGTH)
    project = models.CharField(max_length=64, default="default")
    parent = models.ForeignKey(
        "self", null=True, on_delete=models.DO_NOTHING, related_name="children", db_constraint=False, db_index=False
    )
    started_on = models.CharField(max_length=10)
    calls = JSONTextField(default=dict)
    kinds = models.TextField()
    lengths = models.BinaryField()
    tokens = models.BinaryField()
    settles = models.BooleanField()
    ends_final = models.BooleanField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["parent"], name="chainpart_parent")]

    def __str__(self) -> str:
        return self.id


class SampledItem(models.Model):
    """An output item, what clients see of it as a digest, and the tokens it was sampled as."""

    id = models.CharField(primary_key=True, max_length=ID_LENGTH)
    project = models.CharField(max_length=64, default="default")
    response = models.ForeignKey(
        Response, on_delete=models.CASCADE, related_name="sampled", db_constraint=False, db_index=False
    )
    fingerprint = models.CharField(max_length=32)
    kind = models.CharField(max_length=1)
    tokens = models.BinaryField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["response"], name="sampleditem_response")]

    def __str__(self) -> str:
        return self.id
