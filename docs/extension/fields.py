"""What becomes of each field of each body, as the models of the bodies say it."""

from collections.abc import Iterator, Mapping, Sequence

import orjson

from docs.extension.tables import code, plain, table
from engine.types import SAMPLED, MessagesSampling, TokenSampling, bounds_of, carried, kind_of
from responses_app.protocol.chat.completion import ChatCompletionChanges
from responses_app.protocol.chat.messages import MESSAGES
from responses_app.protocol.chat.request import ChatFields
from responses_app.protocol.fields import ClientModel, carried_out, inner_models
from responses_app.protocol.files.containers import AutoShell, CodeInterpreter, CopiedFile, NewContainer, ReferenceShell
from responses_app.protocol.items.items import MODELS, PASSED_THROUGH, REFUSED_ITEMS
from responses_app.protocol.messages.blocks import MESSAGES as MESSAGES_OF_ANTHROPIC
from responses_app.protocol.messages.request import CountFields, MessagesFields
from responses_app.protocol.messages.tools import TOOLS as TOOLS_OF_ANTHROPIC
from responses_app.protocol.messages.tools import MessagesMcpServer
from responses_app.protocol.requests.create_fields import ENGINE_FIELDS, FORMATS, KNOWN_INCLUDES, Fields
from responses_app.protocol.requests.requests import CompactFields
from responses_app.protocol.requests.server_tools import WEB_SEARCH, FileSearch, ImageGeneration, McpServer, WebSearch
from responses_app.protocol.requests.tools import CLIENT_TOOLS
from responses_app.protocol.session.tool_outputs import ToolOutput
from responses_app.protocol.stateless.completions import CompletionFields
from responses_app.protocol.stateless.decisions import DecisionFields
from responses_app.protocol.stateless.embeddings import EmbeddingFields
from responses_app.resources.batches.fields import NewBatch, NewMessageBatch
from responses_app.resources.conversations.fields import AddedItems, ConversationFields, NewConversationFields
from responses_app.resources.files.fields import CompletedUpload, NewUpload, UploadFields
from responses_app.resources.projects.fields import (
    KeyChanges,
    NewAdminKey,
    NewProject,
    NewRetention,
    NewServiceAccount,
    NewSpendLimit,
    ProjectChanges,
    ServiceAccountChanges,
)
from responses_app.resources.vector_stores.fields import (
    NewVectorStore,
    NewVectorStoreBatch,
    NewVectorStoreFile,
    VectorStoreChanges,
    VectorStoreFileChanges,
    VectorStoreSearch,
)
from responses_app.resources.webhooks.fields import (
    NewWebhookEndpoint,
    WebhookEndpointChanges,
    WebhookSecretRotation,
    WebhookTest,
)
from responses_app.web.endpoint import routes

Models = Mapping[str, type[ClientModel]]

BODIES: Models = {
    "POST /v1/responses": Fields,
    "POST /v1/responses/compact": CompactFields,
    "POST /v1/responses/{response_id}/tool_outputs": ToolOutput,
    "POST /v1/chat/completions": ChatFields,
    "POST /v1/chat/completions/{completion_id}": ChatCompletionChanges,
    "POST /v1/messages": MessagesFields,
    "POST /v1/messages/count_tokens": CountFields,
    "POST /v1/completions": CompletionFields,
    "POST /v1/embeddings": EmbeddingFields,
    "POST /v1/decisions": DecisionFields,
    "POST /v1/conversations": NewConversationFields,
    "POST /v1/conversations/{conversation_id}": ConversationFields,
    "POST /v1/conversations/{conversation_id}/items": AddedItems,
    "POST /v1/files": UploadFields,
    "POST /v1/batches": NewBatch,
    "POST /v1/messages/batches": NewMessageBatch,
    "POST /v1/uploads": NewUpload,
    "POST /v1/uploads/{upload_id}/complete": CompletedUpload,
    "POST /v1/vector_stores": NewVectorStore,
    "POST /v1/vector_stores/{vector_store_id}": VectorStoreChanges,
    "POST /v1/vector_stores/{vector_store_id}/search": VectorStoreSearch,
    "POST /v1/vector_stores/{vector_store_id}/files": NewVectorStoreFile,
    "POST /v1/vector_stores/{vector_store_id}/files/{file_id}": VectorStoreFileChanges,
    "POST /v1/vector_stores/{vector_store_id}/file_batches": NewVectorStoreBatch,
    "POST /v1/webhook_endpoints": NewWebhookEndpoint,
    "POST /v1/webhook_endpoints/{webhook_endpoint_id}": WebhookEndpointChanges,
    "POST /v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret": WebhookSecretRotation,
    "POST /v1/webhook_endpoints/{webhook_endpoint_id}/test": WebhookTest,
    "POST /v1/organization/projects": NewProject,
    "POST /v1/organization/projects/{project_id}": ProjectChanges,
    "POST /v1/organization/projects/{project_id}/api_keys/{api_key_id}": KeyChanges,
    "POST /v1/organization/projects/{project_id}/service_accounts": NewServiceAccount,
    "POST /v1/organization/projects/{project_id}/service_accounts/{service_account_id}": ServiceAccountChanges,
    "POST /v1/organization/admin_api_keys": NewAdminKey,
    "POST /v1/organization/projects/{project_id}/data_retention": NewRetention,
    "POST /v1/organization/projects/{project_id}/spend_limit": NewSpendLimit,
    "POST /v1/organization/spend_limit": NewSpendLimit,
    "POST /v1/containers": NewContainer,
    "POST /v1/containers/{container_id}/files": CopiedFile,
}
TOOLS: Models = {
    **CLIENT_TOOLS,
    "mcp": McpServer,
    "code_interpreter": CodeInterpreter,
    "file_search": FileSearch,
    "image_generation": ImageGeneration,
    **dict.fromkeys(WEB_SEARCH, WebSearch),
}
HOSTED_SHELLS: Models = {"container_auto": AutoShell, "container_reference": ReferenceShell}  # by their environments
REFUSED_TOOLS = {"programmatic_tool_calling": "No programs of the model's call tools here: it calls them itself."}


def bodies() -> str:
    """Return a table of the fields of each body."""
    return "\n\n".join(f"## {code(title)}\n\n{_table(model)}" for title, model in BODIES.items())


def queries() -> str:
    """Return the parameters of each query whose unknown names are told."""
    shown = sorted(
        (f"{each.method} {each.shown_path}", ", ".join(code(name) for name in each.query))
        for route in routes()
        for each in route.endpoints
        if not each.is_open and each.query
    )
    return table(("request", "parameters"), ([code(request), names] for request, names in shown))


def tools() -> str:
    """Return the tools that a request may declare."""
    parts = [f"### {code(kind)}\n\n{_table(model)}" for kind, model in _once(TOOLS).items()]
    parts += [
        f"### {code('shell')} with a {code(environment)}\n\n{_table(model)}"
        for environment, model in HOSTED_SHELLS.items()
    ]
    refused = [(code(kind), "refused: `invalid_value`", plain(why)) for kind, why in REFUSED_TOOLS.items()]
    return "\n\n".join([*parts, table(("others", "what becomes of it", "what to do"), refused)])


def items() -> str:
    """Return the items that an input may have."""
    parts = [f"### {code(kind)}\n\n{_table(model)}" for kind, model in MODELS.items()]
    kept = [
        (code(kind), "refused: `unsupported_parameter`", plain(REFUSED_ITEMS[kind]))
        if kind in REFUSED_ITEMS
        else (code(kind), "carried out", "kept whole, and given back; the model reads what it says")
        for kind in sorted(PASSED_THROUGH)
    ]
    return "\n\n".join([*parts, table(("other items", "", ""), kept)])


def messages() -> str:
    """Return the messages that a chat may have."""
    return "\n\n".join(f"### Role {code(role)}\n\n{_table(model)}" for role, model in _once(MESSAGES).items())


def anthropic_messages() -> str:
    """Return the messages and the tools that a request of Anthropic's Messages API may have."""
    parts = [
        f"### Role {code(role)} at Anthropic's\n\n{_table(model)}" for role, model in MESSAGES_OF_ANTHROPIC.items()
    ]
    tools = [
        f"### Tool {code(kind)} at Anthropic's\n\n{_table(model)}" for kind, model in _once(TOOLS_OF_ANTHROPIC).items()
    ]
    return "\n\n".join([*parts, *tools, f"### {code('mcp_servers')} at Anthropic's\n\n{_table(MessagesMcpServer)}"])


def formats() -> str:
    """Return the formats of an answer."""
    return "\n\n".join(f"### {code(kind)}\n\n{_table(model)}" for kind, model in FORMATS.items())


def includes() -> str:
    """Return what `include` may name."""
    return table(("include",), ([code(name)] for name in sorted(KNOWN_INCLUDES)))


def sampling() -> str:
    """Return the fields of sampling: which values they take, which APIs have them, and how engines call them."""
    return table(
        ("field", "takes", "usual", "roll-outs", "Messages API", "llama.cpp"),
        (
            [
                code(name),
                _taken(name),
                carried(name).usual if kind_of(name) in (int, float) else "",
                "yes" if name in TokenSampling.model_fields else "",
                "yes" if name in MessagesSampling.model_fields else "",
                code(carried(name).llama or name) if carried(name).llama is not None else "by this server",
            ]
            for name in SAMPLED
        ),
    )


def _taken(name: str) -> str:
    kinds = {float: "a number", int: "a whole number", bool: "true or false", dict: "an object"}
    bounds, kind = bounds_of(name), kind_of(name)
    if kind is dict:
        return f"{kinds[kind]} {carried(name).hint.lower()}"
    least = f" above {bounds['gt']}" if "gt" in bounds else f" from {bounds['ge']}" if "ge" in bounds else ""
    most = f" to {bounds['le']}" if "le" in bounds else ""
    return kinds[kind] + (" of 64 bits" if bounds.get("ge") == -(2**63) else least + most)


def rows(model: type[ClientModel], at: str = "", seen: Sequence[type] = ()) -> Iterator[tuple[str, str, str]]:
    """Yield each field with what becomes of it, and why; those of the objects in it, too."""
    inside = inner_models(model)
    for name in sorted(carried_out(model)):
        operators = "with `RESPONSES_COMPATIBILITY_MODE=false`" if model is Fields and name in ENGINE_FIELDS else ""
        own = "not in Anthropic's SDK" if issubclass(model, CountFields) else "not OpenAI's"
        yield f"{at}{name}", "carried out", operators or (own if name in model.own else "")
        for inner in dict.fromkeys(inside.get(name, {}).values()):
            if inner not in seen:
                yield from rows(inner, f"{at}{name}.", (*seen, model))
    for name, refused in sorted(model.refused.items()):
        fine = ", ".join(code(orjson.dumps(each).decode()) for each in refused.takes if each is not False)
        but = f" These are taken: {fine}." if fine else ""
        yield f"{at}{name}", "refused: `unsupported_parameter`", plain(refused.hint) + but
    for name, why in sorted(model.idle.items()):
        told = " The header names it." if name in model.told else ""
        yield f"{at}{name}", "without effect", plain(why) + told


def _table(model: type[ClientModel]) -> str:
    told = dict.fromkeys(rows(model))  # kinds of one object share fields
    return table(("field", "what becomes of it", "why, or what to do"), ([code(name), *rest] for name, *rest in told))


def _once(models: Models) -> Models:
    """Return models under the names of all that have the same one."""
    names: dict[type[ClientModel], list[str]] = {}
    for name, model in models.items():
        names.setdefault(model, []).append(name)
    return {"`, `".join(of): model for model, of in names.items()}
