"""Webhooks: `/v1/webhook_endpoints`, and `/v1/webhook_event_types`."""

from functools import partial

from responses_app.kit.clock import utc
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.fields import validate
from responses_app.protocol.requests.pages import page_of, parse_list_query
from responses_app.resources.webhooks import model
from responses_app.resources.webhooks.fields import (
    PREFIX,
    DeletedWebhookEndpoint,
    NewWebhookEndpoint,
    WebhookEndpoint,
    WebhookEndpointChanges,
    WebhookEndpointList,
    WebhookEndpointTestResult,
    WebhookEndpointWithSecret,
    WebhookEventTypeList,
    WebhookSecretRotation,
    WebhookTest,
    endpoint_not_found,
    endpoints_full,
    shown,
    test_not_answered,
    too_many_tests,
    url_refused,
)
from responses_app.resources.webhooks.messages import EVENT_TYPES, message, secret_hint
from responses_app.resources.webhooks.sender import TESTS_A_MINUTE
from responses_app.resources.webhooks.store import EndpointsFull
from responses_app.tools.network import NetworkError
from responses_app.web.endpoint import PAGED, Endpoint, Refusals
from responses_app.web.http import ApiRequest, or_raise, read_json
from responses_app.wiring.site import get_site

ROTATION_SECONDS = 86_400.0  # how long an old secret stays good, where a rotation asks for that

REFUSALS: Refusals = {
    EndpointsFull: lambda problem, *_: endpoints_full(problem.most),
    NetworkError: lambda problem, *_: url_refused(str(problem)),
}


async def _create(request: ApiRequest) -> WebhookEndpointWithSecret:
    site, project = get_site(), request.project
    body = await read_json(request, partial(validate, NewWebhookEndpoint), site.reader)
    await site.webhook_sender.check(body.url)
    secret, sealed = site.webhook_sender.new_secret(project)
    now = utc(int(site.service.now()))
    row = model.WebhookEndpoint(
        id=site.new_id(PREFIX),
        project=project,
        **body.model_dump(),
        created_at=now,
        updated_at=now,
        secret=sealed,
        secret_hint=secret_hint(secret),
    )
    await site.webhooks.create(row)
    return {**shown(row), "signing_secret": secret}


async def _list(request: ApiRequest) -> WebhookEndpointList:
    page = parse_list_query(request.query, PREFIX)
    rows = await get_site().webhooks.page(
        request.project, after=page.after, descending=page.descending, limit=page.limit + 1
    )
    return page_of(rows, page, shown)


async def _get(request: ApiRequest, endpoint_id: str) -> WebhookEndpoint:
    return shown(await _found(request, endpoint_id))


async def _update(request: ApiRequest, endpoint_id: str) -> WebhookEndpoint:
    site = get_site()
    await _found(request, endpoint_id)  # before the body is judged: what is another project's does not exist
    changes = await read_json(request, partial(validate, WebhookEndpointChanges), site.reader)
    if changes.url is not None:
        await site.webhook_sender.check(changes.url)
    row = await site.webhooks.update(request.project, endpoint_id, changes)
    return shown(or_raise(row, endpoint_not_found(endpoint_id)))


async def _delete(request: ApiRequest, endpoint_id: str) -> DeletedWebhookEndpoint:
    if not await get_site().webhooks.delete(request.project, endpoint_id):
        raise endpoint_not_found(endpoint_id)
    return {"id": endpoint_id, "object": "webhook_endpoint.deleted", "deleted": True}


async def _rotate(request: ApiRequest, endpoint_id: str) -> WebhookEndpointWithSecret:
    site, project = get_site(), request.project
    await _found(request, endpoint_id)
    body = await read_json(request, partial(validate, WebhookSecretRotation), site.reader)
    secret, sealed = site.webhook_sender.new_secret(project)
    keep_old = ROTATION_SECONDS if body.keep_old_secret_active_for_24_hours else 0.0
    row = await site.webhooks.rotate(
        project, endpoint_id, sealed=sealed, hint=secret_hint(secret), keep_old_seconds=keep_old
    )
    return {**shown(or_raise(row, endpoint_not_found(endpoint_id))), "signing_secret": secret}


async def _test(request: ApiRequest, endpoint_id: str) -> WebhookEndpointTestResult:
    site = get_site()
    row = await _found(request, endpoint_id)
    body = await read_json(request, partial(validate, WebhookTest), site.reader)
    if seconds := site.webhook_sender.tests.seconds_until_room(row.project):
        raise too_many_tests(TESTS_A_MINUTE, seconds)
    at = site.service.now()
    sample = message(body.event_type, "test", mark=site.new_id(ids.REQUEST))
    sent = await site.webhook_sender.send(row, sample.id, sample.body(int(at)), at=at)
    if sent.status_code is None:
        raise test_not_answered(sent.problem)
    return {
        "object": "webhook_endpoint.test",
        "webhook_endpoint_id": endpoint_id,
        "event_type": body.event_type,
        "status_code": sent.status_code,
        "success": not sent.problem,
    }


async def _event_types(request: ApiRequest) -> WebhookEventTypeList:
    return {"object": "list", "data": list(EVENT_TYPES)}


async def _found(request: ApiRequest, endpoint_id: str) -> model.WebhookEndpoint:
    row = await get_site().webhooks.get(request.project, endpoint_id)
    return or_raise(row, endpoint_not_found(endpoint_id))


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
        "POST",
        _ENDPOINTS,
        _create,
        "createWebhookEndpoint",
        "Create a webhook endpoint",
        body=NewWebhookEndpoint,
        keeps=_KEPT,
    ),
    _endpoint("GET", _ENDPOINT, _get, "retrieveWebhookEndpoint", "Retrieve a webhook endpoint"),
    _endpoint(
        "POST",
        _ENDPOINT,
        _update,
        "updateWebhookEndpoint",
        "Update a webhook endpoint",
        body=WebhookEndpointChanges,
    ),
    _endpoint("DELETE", _ENDPOINT, _delete, "deleteWebhookEndpoint", "Delete a webhook endpoint"),
    _endpoint(
        "POST",
        f"{_ENDPOINT}/rotate_secret",
        _rotate,
        "rotateWebhookEndpointSecret",
        "Replace the signing secret",
        body=WebhookSecretRotation,
    ),
    _endpoint(
        "POST",
        f"{_ENDPOINT}/test",
        _test,
        "testWebhookEndpoint",
        "Send a sample event to a webhook endpoint",
        body=WebhookTest,
        errors=(429,),
    ),
    _endpoint("GET", "/v1/webhook_event_types", _event_types, "listWebhookEventTypes", "List webhook event types"),
)
