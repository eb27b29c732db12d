"""Rows of tables ⇄ JSON objects, by the fields of their models."""

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from django.db import connection, models

from responses_app.models.fields import JSONTextField

Row = dict[str, Any]
M = TypeVar("M", bound=models.Model)
_UNFIT = re.compile("[\x00\ud800-\udfff]")  # NUL and lone surrogates, which PostgreSQL refuses; JSON escapes them


def row_of(instance: models.Model) -> Row:
    """Return a row as JSON; a number that the database gives it is left out."""
    return {field.attname: _written(getattr(instance, field.attname)) for field in _fields(type(instance))}


def instance_of(model: type[M], row: Mapping[str, Any]) -> M:
    """Return the model's instance of a row that `row_of` wrote. Raises `ValueError` for what is none.

    A field that the row lacks has its default: an older version wrote it.
    """
    fields = {field.attname: field for field in _fields(model)}
    if unknown := row.keys() - fields.keys():
        raise ValueError(f"{model.__name__} has no {min(unknown)!r}")
    return model(**{name: _read(fields[name], value) for name, value in row.items()})


def _fields(model: type[models.Model]) -> list[Any]:
    return [field for field in model._meta.concrete_fields if not isinstance(field, models.AutoField)]


def _written(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else value


def _read(field: Any, value: Any) -> Any:
    if value is None:
        if not field.null:
            raise ValueError(f"{field.name!r} is null")
        return None
    if isinstance(field, models.BinaryField):
        return b64decode(value, validate=True)
    if isinstance(field, models.DateTimeField):
        return datetime.fromisoformat(value)
    if isinstance(field, JSONTextField):
        return value
    if isinstance(field, models.CharField | models.ForeignKey | models.TextField):
        most = field.max_length or (field.target_field.max_length if isinstance(field, models.ForeignKey) else None)
        if not isinstance(value, str) or (most is not None and len(value) > most) or _UNFIT.search(value):
            raise ValueError(f"{field.name!r} is not a text that this table takes")
    elif isinstance(field, models.IntegerField):
        least, most = connection.ops.integer_field_range(field.get_internal_type())
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{field.name!r} is not a number that this table takes")
    return value
