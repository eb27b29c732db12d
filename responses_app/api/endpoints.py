"""All endpoints of the API, by their paths, in the order in which paths are tried."""

from collections.abc import Sequence

from responses_app.api.chat import endpoints as chat_completions
from responses_app.api.chat import stored as stored_chats
from responses_app.api.completions import endpoints as completions
from responses_app.api.containers import endpoints as containers
from responses_app.api.conversations import endpoints as conversations
from responses_app.api.decisions import endpoints as decisions
from responses_app.api.embeddings import endpoints as embeddings
from responses_app.api.files import endpoints as files
from responses_app.api.files import part_uploads
from responses_app.api.models import endpoints as models
from responses_app.api.responses import endpoints as responses
from responses_app.api.server import health, metrics, openapi
from responses_app.api.vector_stores import endpoints as vector_stores
from responses_app.web.endpoint import Endpoint

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
