"""What the columns of models are made of."""

from typing import Any

from django.db import models

from engine import orjson

ID_LENGTH = 64  # characters; ids of ours have 32 behind their prefix


json_text = orjson.text_kept


class WithId(models.Model):
    """A row that has an id of the API's own."""

    id: Any = models.CharField(primary_key=True, max_length=ID_LENGTH)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return str(self.pk)


class JSONTextField(models.TextField):  # type: ignore[type-arg]
    """JSON, kept as the text it was written as; read and written, never searched.

    PostgreSQL's jsonb refuses NUL characters and lone surrogates, which models and clients do send, and reorders keys.
    In JSON text both are escapes, so every response comes back as it went out.
    """

    description = "JSON as text"

    def get_prep_value(self, value: Any) -> str | None:
        return None if value is None else json_text(value)

    def from_db_value(self, value: str | None, expression: object, connection: object) -> Any:
        return None if value is None else orjson.loads_kept(value)

    def to_python(self, value: Any) -> Any:
        # A form's text, or a value that was set in Python.
        return orjson.loads_kept(value) if isinstance(value, str) else value

    def value_to_string(self, obj: models.Model) -> str:
        return json_text(self.value_from_object(obj))
