"""OpenAI's SDK and the search for tools that the server runs, with the demo engine."""

import json
from typing import Any

from openai import OpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseToolSearchCall, ResponseToolSearchOutputItem
from openai.types.responses.namespace_tool import NamespaceTool
from openai.types.responses.tool_param import ToolParam

MANY = 2_000
PARAMETERS = {"type": "object", "properties": {"customer_id": {"type": "string"}}, "required": ["customer_id"]}


def function(name: str, description: str) -> ToolParam:
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": {**PARAMETERS, "additionalProperties": False},
        "strict": True,
        "defer_loading": True,
    }


CRM: ToolParam = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [  # type: ignore[list-item]
        function("get_profile", "Fetches a customer."),
        function("list_open_orders", "Lists open orders."),
    ],
}


def test_a_deferred_function_is_found_called_and_answered(client: OpenAI) -> None:
    tools: list[ToolParam] = [CRM, {"type": "tool_search"}]
    question = 'Please call list_open_orders for "c1".'
    with client.responses.stream(model="demo", input=question, tools=tools) as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    call, output, made = [item for item in response.output if item.type != "reasoning"]
    assert isinstance(call, ResponseToolSearchCall)
    assert isinstance(output, ResponseToolSearchOutputItem)
    for each in (call, output):
        assert (each.execution, each.status) == ("server", "completed")
    (found,) = output.tools
    assert isinstance(found, NamespaceTool)
    assert [tool.name for tool in found.tools] == ["list_open_orders"]
    assert isinstance(made, ResponseFunctionToolCall)
    assert (made.name, made.namespace, json.loads(made.arguments)) == ("list_open_orders", "crm", {"customer_id": "c1"})
    answer = {"type": "function_call_output", "call_id": made.call_id, "output": "two"}
    again = [item.model_dump(exclude_unset=True) for item in response.output]
    for more in (
        {"input": [answer], "previous_response_id": response.id},
        {"input": [{"role": "user", "content": question}, *again, answer]},
    ):
        final = client.responses.create(model="demo", tools=tools, **more)  # type: ignore[call-overload]
        assert "it returned: two" in final.output_text


def test_thousands_of_deferred_tools_cost_the_prompt_nothing(client: OpenAI) -> None:
    many = [function(f"tool_{n}", f"Does thing {n}.") for n in range(MANY)]
    none: Any = client.responses.create(model="demo", input="hi", tools=[*many[:1], {"type": "tool_search"}])
    response: Any = client.responses.create(
        model="demo", input=f"call tool_{MANY - 1} for 'c1'", tools=[*many, {"type": "tool_search"}]
    )
    assert response.output[-1].type == "function_call"
    assert (response.output[-1].name, response.output[-1].namespace) == (f"tool_{MANY - 1}", f"tool_{MANY - 1}")
    assert response.usage.input_tokens < 4 * none.usage.input_tokens
