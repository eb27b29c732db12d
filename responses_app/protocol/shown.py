"""Types that the OpenAPI document shows more exactly than mypy can follow how they are built."""

from typing import Any

from pydantic import GetPydanticSchema


def shown_as(shown: Any) -> GetPydanticSchema:
    """Return what stands in an `Annotated` behind a type, for the document to show this one in its place."""
    return GetPydanticSchema(lambda _, schema_of: schema_of(shown))
