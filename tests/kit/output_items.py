"""Items of every type that the calls of a response become, as their builders write them: with all set, and bare."""

from collections.abc import Iterator

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.calls import CLIENT_KINDS
from responses_app.protocol.items.offers import OfferedTool
from responses_app.protocol.items.resources import ItemStatus
from responses_app.protocol.output.calls import ActionCallBuilder
from responses_app.protocol.output.hosted_items import HostedBuilder, ListToolsBuilder, builder_of
from tests.kit.laws import counting_ids

# By the type of a client's tool: arguments of calls, the barest first.
_CALLS: dict[str, tuple[str, ...]] = {
    "local_shell": (
        '{"command":["ls"]}',
        '{"command":["ls"],"env":{"A":"b"},"timeout_ms":5,"user":"me","working_directory":"/"}',
    ),
    "shell": ('{"commands":["ls"]}', '{"commands":["ls"],"timeout_ms":5,"max_output_length":9}'),
    "apply_patch": (
        '{"type":"delete_file","path":"a"}',
        '{"type":"create_file","path":"a","diff":"+a"}',
        '{"type":"update_file","path":"a","diff":"+a"}',
    ),
    "tool_search": ('{"query":"crm"}',),
}
_RESULT: JsonObject = {"file_id": "file-1", "filename": "a.txt", "score": 0.5, "text": "a", "attributes": {"year": 1}}
# Of each tool of the server: how the model calls it, with which arguments, and what it may show.
_SERVED: list[tuple[OfferedTool, str, list[JsonObject]]] = [
    (
        OfferedTool(name="mcp.f", item="mcp_call", server="mcp", tool="f"),
        "{}",
        [{"output": "a"}, {"error": {"type": "mcp_tool_execution_error", "content": []}}],
    ),
    (
        OfferedTool(name="python", item="code_interpreter_call", fields={"container_id": "cntr_1"}),
        "1",
        [{"outputs": [{"type": "logs", "logs": "1"}, {"type": "image", "url": "data:,"}]}],
    ),
    *((OfferedTool(name=f"browser.{each}", item="web_search_call"), "{}", []) for each in ("search", "open", "find")),
    (
        OfferedTool(name="browser.open", item="web_search_call"),
        '{"id":"https://a.example"}',
        [{"action": {"type": "search", "query": "a", "queries": ["a"], "sources": [{"type": "url", "url": "b"}]}}],
    ),
    (OfferedTool(name="file_search.search", item="file_search_call"), '{"queries":["a"]}', [{"results": [_RESULT]}]),
    (OfferedTool(name="image_generation.generate", item="image_generation_call"), "{}", [{"result": "aaaa"}]),
    (OfferedTool(name="tool_search", item="tool_search_call"), '{"query":"a"}', []),
    (OfferedTool(name="program.run", item="program"), "print()", []),
    (
        OfferedTool(name="container.exec", item="shell_call", fields={"environment": {"type": "local"}}),
        '{"commands":["ls"]}',
        [],
    ),
]


def output_items() -> Iterator[JsonObject]:
    """Yield the items, of calls that ended in every way they can."""
    new_id = counting_ids()
    for kind in CLIENT_KINDS.values():
        for arguments in _CALLS[kind.type]:
            call = ActionCallBuilder(new_id, kind)
            call.told(arguments)
            yield {**call.settled("completed").item("completed")}
    for offered, text, shows in _SERVED:
        for shown in ({}, *shows):
            builder = builder_of(offered, new_id)
            assert isinstance(builder, HostedBuilder)
            builder.grow(text)
            builder.told(text)
            yield {**builder.item("in_progress")}
            builder.called()
            builder.returned(shown, failed="error" in shown)
            yield from _ended(builder)
    for error in (None, "no"):
        listed = ListToolsBuilder(new_id, "mcp")
        listed.tools, listed.error = [{"name": "f", "description": "", "input_schema": {}}], error
        yield {**listed.item("completed")}
    asks = OfferedTool(name="mcp.f", item="mcp_call", server="mcp", tool="f", asks=True)
    yield {**builder_of(asks, new_id).item("completed")}


def _ended(builder: HostedBuilder) -> Iterator[JsonObject]:
    status: ItemStatus = "failed" if builder.failed else "completed"
    yield {**builder.item(status)}
    if (output := builder.output_builder()) is not None:
        output.returned({"outcomes": [{"type": "exit", "exit_code": 0}]}, failed=False)
        yield {**output.item(status)}
