"""Webhooks: `/v1/webhook_endpoints`, and `/v1/webhook_event_types`."""

from functools import partial
from typing import Literal

from django.http import HttpRequest
from typing_extensions import TypedDict

from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.requests.pages import page_of, parse_list_query
from responses_app.protocol.webhooks import (
    EVENT_TYPES,
    ROTATION_SECONDS,
    EndpointStatus,
    NewWebhookEndpoint,
    WebhookEndpointChanges,
    WebhookSecretRotation,
    WebhookTest,
    endpoint_not_found,
    endpoints_full,
    message,
    parse_changes,
    parse_endpoint,
    parse_rotation,
    parse_test,
    secret_hint,
    test_not_answered,
    too_many_tests,
    url_refused,
)
from responses_app.stores.webhooks import EndpointChanges, EndpointRecord, EndpointsFull, NewSecret
from responses_app.tools.network import NetworkError
from responses_app.tools.webhooks.recent_tests import TESTS_A_MINUTE
from responses_app.web.endpoint import PAGED, Endpoint, Refusals
from responses_app.web.http import or_raise, project_of, query_of, read_json
from responses_app.wiring.site import get_site


class WebhookEndpoint(TypedDict):
    """Where a project is told of events."""

    id: str
    object: Literal["webhook_endpoint"]
    created_at: int
    updated_at: int
    name: str
    url: str
    event_types: list[str]
    status: EndpointStatus
    signing_secret_hint: str


class WebhookEndpointWithSecret(WebhookEndpoint):
    """The same with its secret, which is shown this once."""

    signing_secret: str


class WebhookEndpointList(TypedDict):
    """A part of a list of endpoints. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[WebhookEndpoint]
    first_id: str
    last_id: str
    has_more: bool


class DeletedWebhookEndpoint(TypedDict):
    """An endpoint is gone."""

    id: str
    object: Literal["webhook_endpoint.deleted"]
    deleted: Literal[True]


class WebhookEndpointTestResult(TypedDict):
    """How a receiver answered a test."""

    object: Literal["webhook_endpoint.test"]
    webhook_endpoint_id: str
    event_type: str
    status_code: int
    success: bool  # a status from 200 to 299; redirects are not followed


class WebhookEventTypeList(TypedDict):
    """The events that there are."""

    object: Literal["list"]
    data: list[str]


REFUSALS: Refusals = {
    EndpointsFull: lambda problem, *_: endpoints_full(problem.most),
    NetworkError: lambda problem, *_: url_refused(str(problem)),
}


async def _create(request: HttpRequest) -> WebhookEndpointWithSecret:
    site, project = get_site(), project_of(request)
    fields = await read_json(request, parse_endpoint, site.reader)
    await site.webhook_sender.check(fields.url)
    secret, sealed = site.webhook_sender.new_secret(project)
    at = int(site.service.now())
    record = EndpointRecord(
        id=site.new_id(ids.WEBHOOK_ENDPOINT),
        project=project,
        name=fields.name,
        url=fields.url,
        event_types=list(dict.fromkeys(fields.event_types)),
        created_at=at,
        updated_at=at,
        secret=sealed,
        secret_hint=secret_hint(secret),
    )
    await site.webhooks.create(record)
    return {**_shown(record), "signing_secret": secret}


async def _list(request: HttpRequest) -> WebhookEndpointList:
    page = parse_list_query(query_of(request), ids.WEBHOOK_ENDPOINT)
    rows = await get_site().webhooks.listed(
        project_of(request), after=page.after, descending=page.descending, limit=page.limit + 1
    )
    return page_of(rows, page, _shown)


async def _get(request: HttpRequest, endpoint_id: str) -> WebhookEndpoint:
    return _shown(await _found(request, endpoint_id))


async def _update(request: HttpRequest, endpoint_id: str) -> WebhookEndpoint:
    site = get_site()
    await _found(request, endpoint_id)  # before the body is judged: what is another project's does not exist
    fields = await read_json(request, parse_changes, site.reader)
    if fields.url is not None:
        await site.webhook_sender.check(fields.url)
    changes = EndpointChanges(
        name=fields.name,
        url=fields.url,
        event_types=None if fields.event_types is None else list(dict.fromkeys(fields.event_types)),
        status=fields.status,
    )
    record = await site.webhooks.update(project_of(request), endpoint_id, changes)
    return _shown(or_raise(record, endpoint_not_found(endpoint_id)))


async def _delete(request: HttpRequest, endpoint_id: str) -> DeletedWebhookEndpoint:
    if not await get_site().webhooks.delete(project_of(request), endpoint_id):
        raise endpoint_not_found(endpoint_id)
    return {"id": endpoint_id, "object": "webhook_endpoint.deleted", "deleted": True}


async def _rotate(request: HttpRequest, endpoint_id: str) -> WebhookEndpointWithSecret:
    site, project = get_site(), project_of(request)
    await _found(request, endpoint_id)
    keeps_old = await read_json(request, parse_rotation, site.reader)
    secret, sealed = site.webhook_sender.new_secret(project)
    new = NewSecret(sealed=sealed, hint=secret_hint(secret), keep_old_seconds=ROTATION_SECONDS if keeps_old else 0.0)
    record = await site.webhooks.rotate(project, endpoint_id, new)
    return {**_shown(or_raise(record, endpoint_not_found(endpoint_id))), "signing_secret": secret}


async def _test(request: HttpRequest, endpoint_id: str) -> WebhookEndpointTestResult:
    site = get_site()
    record = await _found(request, endpoint_id)
    event_type = await read_json(request, parse_test, site.reader)
    if seconds := site.webhook_sender.tests.seconds_until_room(record.project):
        raise too_many_tests(TESTS_A_MINUTE, seconds)
    at = site.service.now()
    sample = message(event_type, "test", mark=site.new_id(ids.REQUEST))
    sent = await site.webhook_sender.send(record, sample.id, sample.body(int(at)), at=at)
    if sent.status_code is None:
        raise test_not_answered(sent.problem)
    return {
        "object": "webhook_endpoint.test",
        "webhook_endpoint_id": endpoint_id,
        "event_type": event_type,
        "status_code": sent.status_code,
        "success": not sent.problem,
    }


async def _event_types(request: HttpRequest) -> WebhookEventTypeList:
    return {"object": "list", "data": list(EVENT_TYPES)}


async def _found(request: HttpRequest, endpoint_id: str) -> EndpointRecord:
    record = await get_site().webhooks.get(project_of(request), endpoint_id)
    return or_raise(record, endpoint_not_found(endpoint_id))


def _shown(record: EndpointRecord) -> WebhookEndpoint:
    return {
        "id": record.id,
        "object": "webhook_endpoint",
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "name": record.name,
        "url": record.url,
        "event_types": list(record.event_types),
        "status": record.status,
        "signing_secret_hint": record.secret_hint,
    }


_ENDPOINTS = "/v1/webhook_endpoints"
_ENDPOINT = f"{_ENDPOINTS}/{{webhook_endpoint_id}}"
_endpoint = partial(Endpoint, tag="Webhooks", scope=Area.WEBHOOKS, refusals=REFUSALS)

_KEPT = (
    "Webhooks tell of background responses and batches, which are kept",
    "Read the answer of each request as it comes.",
)

ENDPOINTS = (
    _endpoint("GET", _ENDPOINTS, _list, "listWebhookEndpoints", "List webhook endpoints", takes=PAGED),
    _endpoint(
        *("POST", _ENDPOINTS, _create, "createWebhookEndpoint", "Create a webhook endpoint"),
        body=NewWebhookEndpoint,
        keeps=_KEPT,
    ),
    _endpoint("GET", _ENDPOINT, _get, "retrieveWebhookEndpoint", "Retrieve a webhook endpoint"),
    _endpoint(
        *("POST", _ENDPOINT, _update, "updateWebhookEndpoint", "Update a webhook endpoint"),
        body=WebhookEndpointChanges,
    ),
    _endpoint("DELETE", _ENDPOINT, _delete, "deleteWebhookEndpoint", "Delete a webhook endpoint"),
    _endpoint(
        *("POST", f"{_ENDPOINT}/rotate_secret", _rotate, "rotateWebhookEndpointSecret", "Replace the signing secret"),
        body=WebhookSecretRotation,
    ),
    _endpoint(
        *("POST", f"{_ENDPOINT}/test", _test, "testWebhookEndpoint", "Send a sample event to a webhook endpoint"),
        body=WebhookTest,
        errors=(429,),
    ),
    _endpoint("GET", "/v1/webhook_event_types", _event_types, "listWebhookEventTypes", "List webhook event types"),
)
