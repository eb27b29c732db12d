"""`/v1/notes`."""

from functools import partial

from pydantic import Field
from typing_extensions import TypedDict

from acme_notes.store import notes
from responses_app.protocol.api_keys import Area
from responses_app.protocol.fields import ClientModel, validate
from responses_app.web.endpoint import Endpoint
from responses_app.web.http import ApiRequest, read_json
from responses_app.wiring.site import get_site


class NewNote(ClientModel):
    """A note that is written."""

    text: str = Field(min_length=1, max_length=1000)


class NoteList(TypedDict):
    """The notes of a project."""

    data: list[str]


async def _create(request: ApiRequest) -> NoteList:
    note = await read_json(request, partial(validate, NewNote), get_site().reader)
    await notes().add(request.project, note.text)
    return {"data": await notes().texts(request.project)}


async def _list(request: ApiRequest) -> NoteList:
    return {"data": await notes().texts(request.project)}


_endpoint = partial(Endpoint, tag="Notes", scope=Area.RESPONSES)

ENDPOINTS = (
    _endpoint("POST", "/v1/notes", _create, "createNote", "Write a note", body=NewNote),
    _endpoint("GET", "/v1/notes", _list, "listNotes", "List notes"),
)
