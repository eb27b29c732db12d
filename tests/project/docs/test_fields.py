"""The table of fields: all that OpenAI's SDK has, and each row true."""

import ast
from collections.abc import Iterator
from typing import get_args

import pytest
from openai.types.responses import ResponseIncludable
from pydantic import Field

from docs.extension.fields import BODIES, HOSTED_SHELLS, REFUSED_TOOLS, TOOLS
from engine.types import SAMPLED
from responses_app.protocol.chat.messages import MESSAGES
from responses_app.protocol.errors import ApiError
from responses_app.protocol.fields import ClientModel, carried_out, check_fields, inner_models
from responses_app.protocol.files.containers import AutoEnvironment, ReferenceEnvironment
from responses_app.protocol.items.items import MODELS, PASSED_THROUGH, MediaPart, RefusalPart, TextPart
from responses_app.protocol.messages.blocks import MESSAGES as MESSAGES_OF_ANTHROPIC
from responses_app.protocol.messages.tools import TOOLS as TOOLS_OF_ANTHROPIC
from responses_app.protocol.messages.tools import MessagesMcpServer
from responses_app.protocol.requests.create_fields import FORMATS, KNOWN_INCLUDES, Fields
from tests.kit.server import ROOT
from tests.project.docs.sdk_fields import by_kind, differences, inner_types, sdk_types

SDK_BODIES = {
    "POST /v1/responses": "responses.response_create_params.ResponseCreateParamsNonStreaming",
    "POST /v1/responses/compact": "responses.response_compact_params.ResponseCompactParams",
    "POST /v1/chat/completions": "chat.completion_create_params.CompletionCreateParamsNonStreaming",
    "POST /v1/chat/completions/{completion_id}": "chat.completion_update_params.CompletionUpdateParams",
    "POST /v1/completions": "completion_create_params.CompletionCreateParamsNonStreaming",
    "POST /v1/embeddings": "embedding_create_params.EmbeddingCreateParams",
    "POST /v1/decisions": "decision_create_params.DecisionCreateParams",
    "POST /v1/conversations": "conversations.conversation_create_params.ConversationCreateParams",
    "POST /v1/conversations/{conversation_id}": "conversations.conversation_update_params.ConversationUpdateParams",
    "POST /v1/files": "file_create_params.FileCreateParams",
    "POST /v1/batches": "batch_create_params.BatchCreateParams",
    "POST /v1/uploads": "upload_create_params.UploadCreateParams",
    "POST /v1/uploads/{upload_id}/complete": "upload_complete_params.UploadCompleteParams",
    "POST /v1/vector_stores": "vector_store_create_params.VectorStoreCreateParams",
    "POST /v1/vector_stores/{vector_store_id}": "vector_store_update_params.VectorStoreUpdateParams",
    "POST /v1/vector_stores/{vector_store_id}/search": "vector_store_search_params.VectorStoreSearchParams",
    "POST /v1/vector_stores/{vector_store_id}/files": "vector_stores.file_create_params.FileCreateParams",
    "POST /v1/vector_stores/{vector_store_id}/files/{file_id}": "vector_stores.file_update_params.FileUpdateParams",
    "POST /v1/vector_stores/{vector_store_id}/file_batches": (
        "vector_stores.file_batch_create_params.FileBatchCreateParams"
    ),
    "POST /v1/webhook_endpoints": "webhooks.webhook_create_params.WebhookCreateParams",
    "POST /v1/webhook_endpoints/{webhook_endpoint_id}": "webhooks.webhook_update_params.WebhookUpdateParams",
    "POST /v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret": (
        "webhooks.webhook_rotate_secret_params.WebhookRotateSecretParams"
    ),
    "POST /v1/webhook_endpoints/{webhook_endpoint_id}/test": "webhooks.webhook_test_params.WebhookTestParams",
    "POST /v1/organization/projects": "admin.organization.project_create_params.ProjectCreateParams",
    "POST /v1/organization/projects/{project_id}": "admin.organization.project_update_params.ProjectUpdateParams",
    "POST /v1/organization/projects/{project_id}/api_keys/{api_key_id}": (
        "admin.organization.projects.api_key_update_params.APIKeyUpdateParams"
    ),
    "POST /v1/organization/projects/{project_id}/service_accounts": (
        "admin.organization.projects.service_account_create_params.ServiceAccountCreateParams"
    ),
    "POST /v1/organization/projects/{project_id}/service_accounts/{service_account_id}": (
        "admin.organization.projects.service_account_update_params.ServiceAccountUpdateParams"
    ),
    "POST /v1/organization/admin_api_keys": ("admin.organization.admin_api_key_create_params.AdminAPIKeyCreateParams"),
    "POST /v1/organization/projects/{project_id}/data_retention": (
        "admin.organization.projects.data_retention_update_params.DataRetentionUpdateParams"
    ),
    "POST /v1/organization/projects/{project_id}/spend_limit": (
        "admin.organization.projects.spend_limit_update_params.SpendLimitUpdateParams"
    ),
    "POST /v1/organization/spend_limit": "admin.organization.spend_limit_update_params.SpendLimitUpdateParams",
    "POST /v1/containers": "container_create_params.ContainerCreateParams",
    "POST /v1/containers/{container_id}/files": "containers.file_create_params.FileCreateParams",
}
NOT_THE_SDKS = {  # bodies whose fields are not in one type of the SDK
    "POST /v1/responses/{response_id}/tool_outputs",
    "POST /v1/conversations/{conversation_id}/items",  # its other parameter stands in the query
}
ANTHROPICS_BODIES = {
    "POST /v1/messages": "message_create_params.MessageCreateParamsNonStreaming",
    "POST /v1/messages/count_tokens": "message_count_tokens_params.MessageCountTokensParams",
    "POST /v1/messages/batches": "messages.batch_create_params.BatchCreateParams",
}
TOOL_TYPES = by_kind(sdk_types("responses.tool_param.ToolParam"))
ITEM_TYPES = by_kind(sdk_types("responses.response_input_item_param.ResponseInputItemParam"))
PART_TYPES = by_kind(inner_types(each for types in ITEM_TYPES.values() for each in types))
MESSAGE_TYPES = by_kind(sdk_types("chat.chat_completion_message_param.ChatCompletionMessageParam"), "role")
OF_AGENTS = {"agent_message", "multi_agent_call", "multi_agent_call_output"}  # a beta, which has types of its own
FORMAT_TYPES = by_kind(sdk_types("responses.response_format_text_config_param.ResponseFormatTextConfigParam"))


def test_every_body_is_held_against_the_sdk() -> None:
    assert BODIES.keys() == SDK_BODIES.keys() | ANTHROPICS_BODIES.keys() | NOT_THE_SDKS


HEADERS = ("betas", "user_profile_id", "workspace_id")  # which its SDK has among the fields


@pytest.mark.parametrize("body", ANTHROPICS_BODIES)
def test_a_body_has_the_fields_of_anthropics_sdk(body: str) -> None:
    """Of its betas, too."""
    path = ANTHROPICS_BODIES[body]
    types = [*sdk_types(path, "anthropic"), *sdk_types(f"beta.{path}", "anthropic")]
    assert set(differences(BODIES[body], types)) <= {f"{each} is new" for each in HEADERS}


@pytest.mark.parametrize("role", MESSAGES_OF_ANTHROPIC)
def test_a_message_has_the_fields_of_anthropics_sdk(role: str) -> None:
    paths = ("message_param.MessageParam", "beta.beta_message_param.BetaMessageParam")
    types = [each for path in paths for each in by_kind(sdk_types(path, "anthropic"), "role")[role]]
    assert differences(MESSAGES_OF_ANTHROPIC[role], types) == []


TOOLS_IN_ANTHROPICS_SDK = by_kind(sdk_types("beta.beta_tool_union_param.BetaToolUnionParam", "anthropic"))
NOT_HERE = ("advisor", "tool_search")  # how the types of tools begin that are not had here


def test_every_tool_of_anthropics_sdk_is_known() -> None:
    kinds = {kind for kind in TOOLS_IN_ANTHROPICS_SDK if not kind.startswith(NOT_HERE)}
    assert kinds == TOOLS_OF_ANTHROPIC.keys()


@pytest.mark.parametrize("tool", TOOLS_OF_ANTHROPIC)
def test_a_tool_has_the_fields_of_anthropics_sdk(tool: str) -> None:
    others = [kind for kind, model in TOOLS_OF_ANTHROPIC.items() if model is TOOLS_OF_ANTHROPIC[tool]]
    types = [each for kind in others for each in TOOLS_IN_ANTHROPICS_SDK[kind]]
    assert differences(TOOLS_OF_ANTHROPIC[tool], types) == []


def test_an_mcp_server_has_the_fields_of_anthropics_sdk() -> None:
    types = sdk_types(
        "beta.beta_request_mcp_server_url_definition_param.BetaRequestMCPServerURLDefinitionParam", "anthropic"
    )
    assert differences(MessagesMcpServer, types) == []


@pytest.mark.parametrize("body", SDK_BODIES)
def test_a_body_has_the_fields_of_the_sdk(body: str) -> None:
    assert differences(BODIES[body], sdk_types(SDK_BODIES[body])) == []


def test_counting_tokens_takes_the_fields_of_a_create() -> None:
    types = sdk_types("responses.input_token_count_params.InputTokenCountParams")
    assert [each for each in differences(Fields, types) if each.endswith(" is new")] == []


def test_every_tool_of_the_sdk_has_its_row() -> None:
    assert TOOLS.keys() | REFUSED_TOOLS == TOOL_TYPES.keys()


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_has_the_fields_of_the_sdk(tool: str) -> None:
    others = [other for other in TOOLS if TOOLS[other] is TOOLS[tool]]  # versions of one tool have one model
    types = [each for other in others for each in TOOL_TYPES[other]]
    assert differences(TOOLS[tool], types) == []


@pytest.mark.parametrize("environment", HOSTED_SHELLS)
def test_the_environment_of_a_shell_has_the_fields_of_the_sdk(environment: str) -> None:
    model, name = {
        "container_auto": (AutoEnvironment, "container_auto_param.ContainerAutoParam"),
        "container_reference": (ReferenceEnvironment, "container_reference_param.ContainerReferenceParam"),
    }[environment]
    assert differences(model, sdk_types(f"responses.{name}")) == []


def test_every_item_of_the_sdk_has_its_row() -> None:
    assert MODELS.keys() | PASSED_THROUGH == ITEM_TYPES.keys() | OF_AGENTS


@pytest.mark.parametrize("item", MODELS)
def test_an_item_has_the_fields_of_the_sdk(item: str) -> None:
    found = differences(MODELS[item], ITEM_TYPES[item])
    assert [each for each in found if "." not in each or each.endswith(" is new")] == []


@pytest.mark.parametrize("part", [TextPart, RefusalPart, MediaPart])
def test_a_part_has_the_fields_of_the_sdk(part: type[ClientModel]) -> None:
    kinds = get_args(part.model_fields["type"].annotation)
    assert differences(part, [each for kind in kinds for each in PART_TYPES.get(kind, ())]) == []


@pytest.mark.parametrize("role", MESSAGES)
def test_a_message_has_the_fields_of_the_sdk(role: str) -> None:
    others = [other for other in MESSAGES if MESSAGES[other] is MESSAGES[role]]
    assert differences(MESSAGES[role], [each for other in others for each in MESSAGE_TYPES[other]]) == []


@pytest.mark.parametrize("kind", FORMATS)
def test_a_format_has_the_fields_of_the_sdk(kind: str) -> None:
    assert differences(FORMATS[kind], FORMAT_TYPES[kind]) == []


def test_every_include_of_the_sdk_is_known() -> None:
    assert set(get_args(ResponseIncludable)) == KNOWN_INCLUDES


def test_a_field_that_is_taken_out_or_comes_new_is_noticed() -> None:
    class Short(ClientModel):
        metadata: dict[str, str] | None = Field(default=None)
        colour: str | None = None

    found = differences(Short, sdk_types(SDK_BODIES["POST /v1/conversations/{conversation_id}"]))
    assert found == ["colour is not OpenAI's"]
    assert differences(Short, sdk_types(SDK_BODIES["POST /v1/conversations"]))[0] == "items is new"


@pytest.mark.parametrize("name", [*BODIES, *TOOLS])
def test_what_is_said_to_be_refused_is_refused(name: str) -> None:
    model = BODIES.get(name) or TOOLS[name]
    for field, refused in model.refused.items():
        with pytest.raises(ApiError) as raised:
            check_fields(model, {field: {"a": ["value"]}})
        assert (raised.value.status, raised.value.code, raised.value.param) == (400, "unsupported_parameter", field)
        assert refused.hint in raised.value.message
        for value in (None, *refused.takes):
            check_fields(model, {field: value})


def test_what_is_said_to_be_carried_out_is_read_somewhere() -> None:
    read = {*_names_read(), *SAMPLED}  # an engine is given the latter whole
    for model in {
        *BODIES.values(),
        *TOOLS.values(),
        *MODELS.values(),
        *MESSAGES.values(),
        *FORMATS.values(),
        *ANTHROPICS,
    }:
        for each in _with_inner(model):
            names = {field.alias or name: name for name, field in each.model_fields.items()}
            unread = {name for name in carried_out(each) if name not in read and names.get(name) not in read}
            assert unread == set(), each


ANTHROPICS = (*MESSAGES_OF_ANTHROPIC.values(), *TOOLS_OF_ANTHROPIC.values(), MessagesMcpServer)


def _with_inner(model: type[ClientModel]) -> Iterator[type[ClientModel]]:
    yield model
    for models in inner_models(model).values():
        for inner in models.values():
            yield from _with_inner(inner)


def _names_read() -> Iterator[str]:
    """Yield every attribute and every text of the code, but for the names of models' fields."""
    for path in (ROOT / "responses_app").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                yield node.attr
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
