"""All endpoints of the API, by their paths, in the order in which paths are tried; those of others' extensions last."""

import re
from collections.abc import Iterable, Sequence

from responses_app.api import chat, messages, models, openapi, responses, server, stateless
from responses_app.kit.extension import Extension, extensions
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


def table_with(loaded: Iterable[Extension]) -> Sequence[Endpoint]:
    """Return the table with the endpoints of extensions. Ends the process where another has a path of theirs.

    Theirs have the place of their tag, also in the OpenAPI document; those with a tag of their own come last.
    """
    brought = [(extension.label, endpoint) for extension in loaded for endpoint in extension.endpoints()]
    by_tag: dict[str, list[Endpoint]] = {}
    for _, endpoint in brought:
        by_tag.setdefault(endpoint.tag, []).append(endpoint)
    table = (
        *responses.ENDPOINTS,
        *chat.ENDPOINTS,
        *messages.ENDPOINTS,
        *batches.MESSAGES_ENDPOINTS,
        *stateless.ENDPOINTS,
        *models.ENDPOINTS,
        *by_tag.pop("Engine", ()),
        *conversations.ENDPOINTS,
        *files.ENDPOINTS,
        *batches.ENDPOINTS,
        *vector_stores.ENDPOINTS,
        *by_tag.pop("Containers", ()),
        *skills.ENDPOINTS,
        *by_tag.pop("Rollouts", ()),
        *webhooks.ENDPOINTS,
        *projects.ENDPOINTS,
        *audit_logs.ENDPOINTS,
        *projects.SPEND_LIMITS,
        *usage.ENDPOINTS,
        *by_tag.pop("Playground", ()),
        *openapi.ENDPOINTS,
        *server.ENDPOINTS,
        *(endpoint for endpoints in by_tag.values() for endpoint in endpoints),
    )
    owners = {id(endpoint): label for label, endpoint in brought}
    patterns = [(owners.get(id(other)), other.path, re.compile(other.regex)) for other in table]
    for label, endpoint in brought:
        example = re.sub(r"\{[^}]*\}", "~", endpoint.path).removeprefix("/")
        for owner, path, pattern in patterns:
            if owner != label and pattern.match(example):
                raise SystemExit(
                    f"respsite: the extension {label!r} brings {endpoint.method} {endpoint.path}, and {path} of "
                    f"{f'the extension {owner!r}' if owner else 'the server'} has this path. Give the endpoint "
                    "another path, or remove the extension from EXTENSIONS."
                )
    return table


ENDPOINTS = table_with(extensions())
