"""The fields of requests and answers of `/v1/webhook_endpoints`, and the errors that are theirs alone."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from responses_app.kit.clock import unix
from responses_app.protocol.errors import ApiError, invalid_request, not_found, rate_limited
from responses_app.protocol.fields import ClientModel, Text
from responses_app.resources.webhooks.messages import EVENT_TYPES, EventName

if TYPE_CHECKING:
    from responses_app.resources.webhooks import model

PREFIX = "we_"  # of their ids
MAX_NAME, MAX_URL = 256, 2048  # characters

EndpointStatus = Literal["enabled", "disabled"]
Url = Annotated[Text, Field(min_length=1, max_length=MAX_URL)]
Name = Annotated[Text, Field(min_length=1, max_length=MAX_NAME)]
EventTypes = Annotated[
    list[EventName],
    Field(min_length=1, max_length=len(EVENT_TYPES)),
    AfterValidator(lambda names: list(dict.fromkeys(names))),  # each once
]


class NewWebhookEndpoint(ClientModel):
    """The body of a create."""

    name: Name
    url: Url
    event_types: EventTypes


class WebhookEndpointChanges(ClientModel):
    """The body of an update; `status` is this server's own."""

    own = ("status",)

    name: Name | None = None
    url: Url | None = None
    event_types: EventTypes | None = None
    status: EndpointStatus | None = None

    def columns(self) -> dict[str, object]:
        """Return the columns of an endpoint that were sent. One that is not given, or null, stays as it is."""
        columns = self.model_dump(exclude={"status"}, exclude_none=True)
        return columns if self.status is None else {**columns, "enabled": self.status == "enabled"}


class WebhookSecretRotation(ClientModel):
    """The body of a rotation."""

    keep_old_secret_active_for_24_hours: bool = False


class WebhookTest(ClientModel):
    """The body of a test."""

    event_type: EventName


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


def shown(row: "model.WebhookEndpoint") -> WebhookEndpoint:
    """Return an endpoint as clients see it."""
    return {
        "id": row.pk,
        "object": "webhook_endpoint",
        "created_at": unix(row.created_at),
        "updated_at": unix(row.updated_at),
        "name": row.name,
        "url": row.url,
        "event_types": row.event_types,
        "status": "enabled" if row.enabled else "disabled",
        "signing_secret_hint": row.secret_hint,
    }


def endpoint_not_found(endpoint_id: str) -> ApiError:
    """The project has no such endpoint (404)."""
    return not_found(
        f"No webhook endpoint found with id '{endpoint_id[:80]}'.",
        param="webhook_endpoint_id",
        code="webhook_endpoint_not_found",
    )


def url_refused(reason: str) -> ApiError:
    """Nothing is sent to this URL (400)."""
    return invalid_request(f"Webhooks cannot be sent to this 'url'. {reason}", param="url", code="invalid_webhook_url")


def endpoints_full(most: int) -> ApiError:
    """The project has as many endpoints as it may have (400)."""
    return invalid_request(
        f"A project has at most {most} webhook endpoints here (WEBHOOK_ENDPOINTS_MAX). Delete one first.",
        code="too_many_webhook_endpoints",
    )


def too_many_tests(most: int, retry_after: int) -> ApiError:
    """The project has had many test events sent in the last minute (429)."""
    return rate_limited(
        f"This project has sent {most} test events in the last minute. Wait before the next one.",
        retry_after=retry_after,
    )


def test_not_answered(reason: str) -> ApiError:
    """The receiver has not answered a test (400)."""
    return invalid_request(f"The receiver did not answer the test event. {reason}", code="webhook_test_failed")
