"""What the clients here want to be told: a model whose schema says more than the types of its fields."""

from typing import Literal

from pydantic import BaseModel, Field


class Stop(BaseModel):
    """A place on the way."""

    city: str
    nights: int = Field(ge=1, le=30)


class Trip(BaseModel):
    """A trip through some cities."""

    title: str = Field(min_length=1)
    by: Literal["rail", "road"]
    stops: list[Stop] = Field(min_length=1, max_length=4)
    note: str | None


ASKED = "Plan a trip to Paris."
# The demo engine repeats what it is told to: where only some JSON object is asked for, it knows no schema to fill.
WISHED = '{"title": "Seine", "by": "rail", "stops": [{"city": "Paris", "nights": 2}], "note": null}'
REPEAT = f"repeat: {WISHED}"
TOO_LONG = "a " * 140_000  # more tokens than the demo engine reads
