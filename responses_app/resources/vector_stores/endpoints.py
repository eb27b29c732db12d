"""The Vector Stores API: `/v1/vector_stores`, their files, batches of these, and searches."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from responses_app.auth.scopes import Named, check_named
from responses_app.kit.clock import utc
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area, Caller
from responses_app.protocol.requests.pages import page_of, parse_list_query
from responses_app.resources.files.fields import file_not_found
from responses_app.resources.vector_stores import model
from responses_app.resources.vector_stores.fields import (
    STATUSES,
    CountedBatch,
    DeletedVectorStore,
    NewStoreFile,
    NewVectorStore,
    NewVectorStoreBatch,
    NewVectorStoreFile,
    VectorStore,
    VectorStoreBatch,
    VectorStoreChanges,
    VectorStoreContent,
    VectorStoreFile,
    VectorStoreFileChanges,
    VectorStoreFileList,
    VectorStoreList,
    VectorStoreResults,
    VectorStoreSearch,
    batch_not_found,
    content_page,
    parse_attributes,
    parse_batch,
    parse_search,
    parse_store,
    parse_store_changes,
    parse_store_file,
    search_page,
    shown_batch,
    shown_file,
    shown_store,
    status_of,
    store_columns,
    store_expired,
    store_file_not_found,
    store_not_found,
    stores_full,
)
from responses_app.resources.vector_stores.store import VectorStoresFull
from responses_app.resources.vector_stores.tool import FileSearchTool
from responses_app.web.endpoint import BEFORE, PAGED, Endpoint, Parameter, Refusals, text
from responses_app.web.http import ApiRequest, or_raise, read_json
from responses_app.wiring.server_tools import file_search_of
from responses_app.wiring.site import get_site

REFUSALS: Refusals = {VectorStoresFull: lambda problem, *_: stores_full(str(problem))}


def _search_tool() -> FileSearchTool:
    return file_search_of(get_site().tools)


async def _create(request: ApiRequest) -> VectorStore:
    site = get_site()
    body, named = await read_json(request, parse_store, site.reader)
    now, stores = utc(int(site.service.now())), _search_tool().stores
    row = model.VectorStore(
        id=site.new_id(ids.VECTOR_STORE),
        project=request.project,
        **store_columns(body),
        created_at=now,
        last_active_at=now,
    )
    await stores.create(row, await _known_files(request.caller, named))
    # The indexer looks at once, instead of with its next round.
    _search_tool().indexer.ring()
    return await _get(request, row.pk)


async def _list(request: ApiRequest) -> VectorStoreList:
    page = parse_list_query(request.query, ids.VECTOR_STORE, both_ends=True)
    rows = await _search_tool().stores.listed(request.project, page)
    return page_of(rows, page, partial(shown_store, now=get_site().service.now()))


async def _get(request: ApiRequest, store_id: str) -> VectorStore:
    store = await _search_tool().stores.counted(request.project, store_id)
    return shown_store(or_raise(store, store_not_found(store_id)), now=get_site().service.now())


async def _update(request: ApiRequest, store_id: str) -> VectorStore:
    changes = await read_json(request, parse_store_changes, get_site().reader)
    store = await _search_tool().stores.update(request.project, store_id, store_columns(changes))
    return shown_store(or_raise(store, store_not_found(store_id)), now=get_site().service.now())


async def _delete(request: ApiRequest, store_id: str) -> DeletedVectorStore:
    if not await _search_tool().stores.delete(request.project, store_id):
        raise store_not_found(store_id)
    _search_tool().indexer.ring()
    return {"id": store_id, "object": "vector_store.deleted", "deleted": True}


async def _search(request: ApiRequest, store_id: str) -> VectorStoreResults:
    await _check(request.project, store_id)
    search = await read_json(request, parse_search, get_site().reader)
    (hits,) = await _search_tool().search(request.project, [store_id], search)
    return search_page(search.queries, or_raise(hits, store_expired(store_id)))


async def _add_file(request: ApiRequest, store_id: str) -> VectorStoreFile:
    await _check(request.project, store_id)
    new_file = await read_json(request, parse_store_file, get_site().reader)
    (row,) = await _added(request.caller, store_id, [new_file])
    return shown_file(row)


async def _list_files(request: ApiRequest, store_id: str) -> VectorStoreFileList:
    await _check(request.project, store_id)
    return await _file_page(request, store_id)


async def _get_file(request: ApiRequest, store_id: str, file_id: str) -> VectorStoreFile:
    return shown_file(await _found_file(request.project, store_id, file_id))


async def _update_file(request: ApiRequest, store_id: str, file_id: str) -> VectorStoreFile:
    project = request.project
    await _found_file(project, store_id, file_id)
    attributes = await read_json(request, parse_attributes, get_site().reader)
    row = await _search_tool().stores.set_attributes(project, store_id, file_id, attributes)
    return shown_file(or_raise(row, store_file_not_found(store_id, file_id)))


async def _remove_file(request: ApiRequest, store_id: str, file_id: str) -> DeletedVectorStore:
    project = request.project
    await _check(project, store_id)
    if not await _search_tool().stores.remove_file(project, store_id, file_id):
        raise store_file_not_found(store_id, file_id)
    _search_tool().indexer.ring()
    return {"id": file_id, "object": "vector_store.file.deleted", "deleted": True}


async def _content(request: ApiRequest, store_id: str, file_id: str) -> VectorStoreContent:
    row = await _found_file(request.project, store_id, file_id)
    return content_page(row, await _search_tool().stores.content(request.project, store_id, file_id) or ())


async def _add_batch(request: ApiRequest, store_id: str) -> VectorStoreBatch:
    await _check(request.project, store_id)
    new_files = await read_json(request, parse_batch, get_site().reader)
    batch_id = get_site().new_id(ids.VECTOR_STORE_BATCH)
    await _added(request.caller, store_id, new_files, batch_id=batch_id)
    return await _get_batch(request, store_id, batch_id)


async def _get_batch(request: ApiRequest, store_id: str, batch_id: str) -> VectorStoreBatch:
    return shown_batch(await _found_batch(request.project, store_id, batch_id))


async def _cancel_batch(request: ApiRequest, store_id: str, batch_id: str) -> VectorStoreBatch:
    project = request.project
    await _found_batch(project, store_id, batch_id)
    batch = await _search_tool().stores.cancel_batch(project, store_id, batch_id)
    return shown_batch(or_raise(batch, batch_not_found(store_id, batch_id)))


async def _list_batch_files(request: ApiRequest, store_id: str, batch_id: str) -> VectorStoreFileList:
    await _found_batch(request.project, store_id, batch_id)
    return await _file_page(request, store_id, batch_id=batch_id)


async def _check(project: str, store_id: str) -> None:
    """Raise `ApiError` for a store that is not there; before the body is judged: another project's does not exist."""
    or_raise(await _search_tool().stores.get(project, store_id), store_not_found(store_id))


async def _found_file(project: str, store_id: str, file_id: str) -> model.VectorStoreFile:
    await _check(project, store_id)
    row = await _search_tool().stores.file(project, store_id, file_id)
    return or_raise(row, store_file_not_found(store_id, file_id))


async def _found_batch(project: str, store_id: str, batch_id: str) -> CountedBatch:
    await _check(project, store_id)
    batch = await _search_tool().stores.batch(project, store_id, batch_id)
    return or_raise(batch, batch_not_found(store_id, batch_id))


# Names are read here, where an unknown file can still be refused: the store keeps them beside its chunks.
async def _known_files(caller: Caller, new_files: Sequence[NewStoreFile]) -> Sequence[NewStoreFile]:
    """Return the files that a request names, with their own names. Raises `ApiError` for one that is not there."""
    # Who may not read files must not learn which ones there are.
    check_named(caller.scopes, (Named(Area.FILES, file.at) for file in new_files))
    records = await get_site().files.some(caller.project, [file.file_id for file in new_files])
    names = {record.id: record.filename for record in records}
    for file in new_files:
        if file.file_id not in names:
            raise file_not_found(file.file_id, param=file.at)
    return [replace(file, filename=names[file.file_id]) for file in new_files]


async def _added(
    caller: Caller, store_id: str, new_files: Sequence[NewStoreFile], *, batch_id: str = ""
) -> Sequence[model.VectorStoreFile]:
    known = await _known_files(caller, new_files)
    added = await _search_tool().stores.add(caller.project, store_id, known, batch_id=batch_id)
    rows = or_raise(added, store_expired(store_id))
    _search_tool().indexer.ring()
    return rows


async def _file_page(request: ApiRequest, store_id: str, *, batch_id: str | None = None) -> VectorStoreFileList:
    page = parse_list_query(request.query, ids.FILE, both_ends=True)
    status = status_of(request.query)
    rows = await _search_tool().stores.files(request.project, store_id, page, status=status, batch_id=batch_id)
    return page_of(rows, page, shown_file)


_STORES = "/v1/vector_stores"
_STORE = f"{_STORES}/{{vector_store_id}}"
_FILE = f"{_STORE}/files/{{file_id}}"
_BATCH = f"{_STORE}/file_batches/{{batch_id}}"
_LISTED = (Parameter("filter", "Only files that have this status.", text(enum=list(STATUSES))), *PAGED, BEFORE)
_FULL = (404, 429)  # a file that is named may not be there, and there may be too much
_endpoint = partial(Endpoint, tag="Vector stores", scope=Area.VECTOR_STORES, refusals=REFUSALS)

_KEPT = ("A vector store is kept, with its files", "Send what the model is to read in 'input'.")

ENDPOINTS = (
    _endpoint("GET", _STORES, _list, "listVectorStores", "List the vector stores", takes=(*PAGED, BEFORE)),
    _endpoint(
        "POST",
        _STORES,
        _create,
        "createVectorStore",
        "Create a vector store",
        body=NewVectorStore,
        errors=_FULL,
        keeps=_KEPT,
    ),
    _endpoint("GET", _STORE, _get, "getVectorStore", "Return a vector store"),
    _endpoint("POST", _STORE, _update, "modifyVectorStore", "Change a vector store", body=VectorStoreChanges),
    _endpoint("DELETE", _STORE, _delete, "deleteVectorStore", "Delete a vector store"),
    _endpoint(
        "POST",
        f"{_STORE}/search",
        _search,
        "searchVectorStore",
        "Search a vector store",
        body=VectorStoreSearch,
        only_asks=True,
    ),
    _endpoint(
        "GET", f"{_STORE}/files", _list_files, "listVectorStoreFiles", "List the files of a store", takes=_LISTED
    ),
    _endpoint(
        "POST",
        f"{_STORE}/files",
        _add_file,
        "createVectorStoreFile",
        "Add a file to a store",
        body=NewVectorStoreFile,
        errors=_FULL,
    ),
    _endpoint("GET", _FILE, _get_file, "getVectorStoreFile", "Return a file of a store"),
    _endpoint(
        "POST",
        _FILE,
        _update_file,
        "updateVectorStoreFileAttributes",
        "Change the attributes of a file",
        body=VectorStoreFileChanges,
    ),
    _endpoint("DELETE", _FILE, _remove_file, "deleteVectorStoreFile", "Remove a file from a store"),
    _endpoint(
        "GET",
        f"{_FILE}/content",
        _content,
        "retrieveVectorStoreFileContent",
        "Return the text of a file, as it is searched",
    ),
    _endpoint(
        "POST",
        f"{_STORE}/file_batches",
        _add_batch,
        "createVectorStoreFileBatch",
        "Add several files to a store",
        body=NewVectorStoreBatch,
        errors=_FULL,
    ),
    _endpoint("GET", _BATCH, _get_batch, "getVectorStoreFileBatch", "Return a batch"),
    _endpoint("POST", f"{_BATCH}/cancel", _cancel_batch, "cancelVectorStoreFileBatch", "Cancel a batch"),
    _endpoint(
        "GET",
        f"{_BATCH}/files",
        _list_batch_files,
        "listFilesInVectorStoreBatch",
        "List the files of a batch",
        takes=_LISTED,
    ),
)
