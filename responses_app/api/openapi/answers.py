"""What the API answers with, as types: they describe, and nothing is checked against them while it serves.

Requests have types in `responses_app.protocol`, by which they are validated. Objects may have more fields than stand
here: what clients sent is given back as it came.
"""

from typing import Literal, get_type_hints

from pydantic import BaseModel, Field, create_model

from responses_app.api.openapi.item_answers import Item, OutputItem
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.protocol.usage import Usage

_NARROWER = {  # than the fields of `ResponseObject`, which say what the server itself must know of them
    "output": list[OutputItem],
    "prompt": JsonObject | None,
}
_NEVER_SHOWN = ("public_id",)


def _response() -> type[BaseModel]:
    """Return the type of `ResponseObject`, which pydantic reads as it stands from Python 3.12 on only.

    Its name is that of the Open Responses specification. Generated clients have a `Response` of their own: an answer
    over HTTP.
    """
    hints = get_type_hints(ResponseObject) | _NARROWER
    shown = {name: hint for name, hint in hints.items() if name not in _NEVER_SHOWN}
    lacking: dict[str, object] = {
        name: Field(default_factory=list) for name in shown if name not in ResponseObject.__required_keys__
    }
    fields = {name: (hint, lacking.get(name, ...)) for name, hint in shown.items()}
    doc = "A response, and what its request asked for."
    return create_model("ResponseResource", __doc__=doc, **fields)  # type: ignore[call-overload, no-any-return]


ResponseResource = _response()


class CompactedResponse(BaseModel):
    """What a conversation becomes: the user's messages, and a `compaction`."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[Item]
    usage: Usage


class ItemList(BaseModel):
    """A part of a list of items. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[Item]
    first_id: str
    last_id: str
    has_more: bool


DESCRIBED: tuple[type[BaseModel], ...] = (ResponseResource, CompactedResponse, ItemList, Item)
