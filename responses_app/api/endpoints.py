"""All endpoints of the API, by their paths, in the order in which paths are tried."""

from collections.abc import Sequence

from responses_app.endpoint import Endpoint
from responses_app.views import (
    chat_completions,
    completions,
    containers,
    conversations,
    decisions,
    embeddings,
    files,
    health,
    metrics,
    models,
    openapi,
    part_uploads,
    responses,
    stored_chats,
    vector_stores,
)

ENDPOINTS: Sequence[Endpoint] = (
    *responses.ENDPOINTS,
    *stored_chats.ENDPOINTS,
    *chat_completions.ENDPOINTS,
    *completions.ENDPOINTS,
    *embeddings.ENDPOINTS,
    *decisions.ENDPOINTS,
    *models.ENDPOINTS,
    *conversations.ENDPOINTS,
    *files.ENDPOINTS,
    *part_uploads.ENDPOINTS,
    *vector_stores.ENDPOINTS,
    *containers.ENDPOINTS,
    *openapi.endpoints_of(lambda: ENDPOINTS),
    *health.ENDPOINTS,
    *metrics.ENDPOINTS,
)
