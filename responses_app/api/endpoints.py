"""All endpoints of the API, by their paths, in the order in which paths are tried; those of others' extensions last."""

from collections.abc import Sequence

from responses_app.api import chat, completions, decisions, embeddings, messages, models, openapi, responses, server
from responses_app.kit.extension import extensions
from responses_app.resources.audit import endpoints as audit_logs
from responses_app.resources.batches import endpoints as batches
from responses_app.resources.conversations import endpoints as conversations
from responses_app.resources.files import endpoints as files
from responses_app.resources.projects import endpoints as projects
from responses_app.resources.skills import endpoints as skills
from responses_app.resources.usage import endpoints as usage
from responses_app.resources.vector_stores import endpoints as vector_stores
from responses_app.resources.webhooks import endpoints as webhooks
from responses_app.web.endpoint import Endpoint

# What extensions bring, by the tag. Tags that have a place below stand there, also in the OpenAPI document.
_BROUGHT: dict[str, list[Endpoint]] = {}
for _extension in extensions():
    for _endpoint in _extension.endpoints():
        _BROUGHT.setdefault(_endpoint.tag, []).append(_endpoint)
ENDPOINTS: Sequence[Endpoint] = (
    *responses.ENDPOINTS,
    *chat.ENDPOINTS,
    *messages.ENDPOINTS,
    *batches.MESSAGES_ENDPOINTS,
    *completions.ENDPOINTS,
    *embeddings.ENDPOINTS,
    *decisions.ENDPOINTS,
    *models.ENDPOINTS,
    *_BROUGHT.pop("Engine", ()),
    *conversations.ENDPOINTS,
    *files.ENDPOINTS,
    *batches.ENDPOINTS,
    *vector_stores.ENDPOINTS,
    *_BROUGHT.pop("Containers", ()),
    *skills.ENDPOINTS,
    *_BROUGHT.pop("Rollouts", ()),
    *webhooks.ENDPOINTS,
    *projects.ENDPOINTS,
    *audit_logs.ENDPOINTS,
    *projects.SPEND_LIMITS,
    *usage.ENDPOINTS,
    *_BROUGHT.pop("Playground", ()),
    *openapi.ENDPOINTS,
    *server.ENDPOINTS,
    *(endpoint for endpoints in _BROUGHT.values() for endpoint in endpoints),
)
