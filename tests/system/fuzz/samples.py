"""What a request may hold: one valid value for every field, item type, part type and tool. The mutations start here."""

from typing import Any

from tests.kit.pictures import data_url, picture

Json = Any

TEXT = {"type": "input_text", "text": "count to 3"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"city": "Rome"}'}

PARTS: list[Json] = [
    TEXT,
    {"type": "output_text", "text": "one", "annotations": [], "logprobs": []},
    {"type": "refusal", "refusal": "no"},
    {"type": "input_image", "image_url": data_url(picture()), "detail": "auto"},
    {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,YQ=="},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
]

ITEMS: list[list[Json]] = [  # each a list that can stand alone: an output comes behind its call
    [{"role": "user", "content": "Hello"}],
    [{"type": "message", "role": "user", "content": PARTS}],
    [{"type": "message", "role": "assistant", "phase": "commentary", "content": [PARTS[1]], "id": "msg_1"}],
    [{"role": "developer", "content": "be brief"}, {"role": "system", "content": [TEXT]}],
    [{"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}],
    [
        {
            "type": "reasoning",
            "id": "rs_2",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "x",
        }
    ],
    [CALL, {"type": "function_call_output", "call_id": "call_1", "output": "18 degrees"}],
    [CALL, {"type": "function_call_output", "call_id": "call_1", "output": PARTS[:2]}],
    [{**CALL, "status": "completed", "output": "18 degrees"}],
    [
        {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "done"},
    ],
    [{"type": "item_reference", "id": "msg_1"}],
    [{"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}],
    [{"role": "user", "content": "Hello"}, {"type": "compaction_trigger"}],
    [{"type": "code_interpreter_call", "id": "ci_1", "code": "1", "container_id": "c", "status": "completed"}],
    [
        {"type": "mcp_approval_request", "id": "mcpr_1", "name": "f", "arguments": "{}", "server_label": "s"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    ],
    [{"type": "mcp_call", "id": "mcp_1", "name": "f", "arguments": "{}", "server_label": "s", "output": "ok"}],
    [{"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": [{"name": "f", "input_schema": {}}]}],
    [{"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}],
    [{"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["x"], "results": []}],
    [{"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "f"}]}],
    [
        {"type": "apply_patch_call", "call_id": "call_3", "status": "completed", "operation": {"type": "delete_file"}},
        {"type": "apply_patch_call_output", "call_id": "call_3", "status": "completed", "output": "ok"},
    ],
    [
        {"type": "local_shell_call", "call_id": "call_4", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "local_shell_call_output", "id": "call_4", "call_id": "call_4", "output": "a"},
    ],
    [
        {"type": "shell_call", "call_id": "call_5", "action": {"commands": ["ls"], "timeout_ms": 10}},
        {
            "type": "shell_call_output",
            "call_id": "call_5",
            "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
    ],
    [
        {"type": "tool_search_call", "call_id": "call_6", "arguments": {"query": "x"}, "execution": "client"},
        {"type": "tool_search_output", "call_id": "call_6", "tools": []},
    ],
    [
        {"type": "computer_call", "call_id": "call_7", "action": {"type": "screenshot"}, "status": "completed"},
        {"type": "computer_call_output", "call_id": "call_7", "output": {"type": "computer_screenshot"}},
    ],
    [{"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "AAAA"}],
    [{"type": "program", "id": "p_1"}, {"type": "program_output", "id": "p_2"}],
]

LARK = '%import common.WS\n%ignore WS\nstart: (WORD | "(" start ")")~1..3\nWORD: LETTER+\nLETTER: /[a-z]/i | "0".."9"\n'

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome"]}, "n": {"type": ["integer", "null"]}},
    "required": ["city"],
    "additionalProperties": False,
}

SCHEMAS: list[Json] = [  # with what is merged, resolved, told apart and matched
    {
        "$ref": "#/$defs/a",
        "minProperties": 1,
        "$defs": {"a": {"type": "object", "additionalProperties": {"$ref": "#"}}},
    },
    {"allOf": [{"properties": {"a": {"minimum": 1}}}, {"properties": {"a": {"maximum": 9}}, "required": ["a"]}]},
    {"oneOf": [{"properties": {"t": {"const": each}}, "required": ["t"]} for each in (1, "a", None)]},
    {"enum": ["aaa", [1, 1], {"a": 1}], "items": {"anyOf": [{"const": 1}, {"pattern": "^a+$"}]}, "uniqueItems": False},
    {"type": ["array", "null"], "prefixItems": [{"type": "string", "maxLength": 9}], "items": {"pattern": "[^a]{2,5}"}},
]

TOOLS: list[Json] = [
    {"type": "function", "name": "look", "description": "Look", "parameters": SCHEMA, "strict": True},
    {"type": "function", "function": {"name": "nested", "parameters": {"type": "object", "properties": {}}}},
    {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}},
    {
        "type": "custom",
        "name": "word",
        "format": {"type": "grammar", "syntax": "regex", "definition": "(ab|c[x-z]*){1,9}"},
    },
    {
        "type": "custom",
        "name": "words",
        "format": {"type": "grammar", "syntax": "lark", "definition": LARK},
        "async": True,
    },
    *({"type": "function", "name": f"f{at}", "parameters": each} for at, each in enumerate(SCHEMAS)),
    {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]},
    {"type": "web_search", "filters": {"allowed_domains": ["a.example"]}},
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "apply_patch"},
    {"type": "tool_search", "execution": "client"},
    {"type": "mcp", "server_label": "s", "server_url": "https://mcp.example/mcp", "require_approval": "never"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "shell", "environment": {"type": "container_auto"}},
    {"type": "file_search", "vector_store_ids": ["vs_1"]},
    {"type": "image_generation"},
    {"type": "computer_use_preview", "display_width": 1, "display_height": 1, "environment": "linux"},
]

MESSAGES: list[Json] = [  # of what came before, as the model has them and as Chat Completions does
    {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    {"author": {"role": "assistant"}, "channel": "analysis", "content": [{"type": "text", "text": "Hm."}]},
    {"role": "assistant", "recipient": "functions.look", "channel": "commentary", "content": "{}"},
    {"role": "tool", "name": "functions.look", "content": "18 degrees"},
    {"role": "assistant", "tool_calls": [{"id": "call_1", "function": {"name": "look", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees"},
    {"role": "assistant", "reasoning_content": "Hm.", "content": "18 degrees."},
]

TOOL_OUTPUTS: list[Json] = ["18 degrees", "", PARTS[:2], [PARTS[3]], PARTS]  # of a call that a response waits for
OWN_ID, OWN_CALL = "resp_own", "call_own"  # what stands for the ids of a response that runs

WORDS: list[Json] = [  # to a response that runs
    {"type": "response.steer", "previous_response_id": OWN_ID, "input": "stop"},
    {"type": "response.steer", "previous_response_id": OWN_ID, "input": [{"role": "user", "content": [TEXT]}]},
    {"type": "response.steer", "previous_response_id": OWN_ID, "input": [{"role": "user", "content": PARTS[3:5]}]},
    {"type": "response.interrupt", "response_id": OWN_ID},
    {"type": "response.interrupt", "response_id": OWN_ID, "mode": "discard_partial_items"},
    {"type": "response.cancel", "response_id": OWN_ID},
]

FIELDS: dict[str, list[Json]] = {
    "model": ["demo"],
    "instructions": ["Be brief."],
    "previous_response_id": ["resp_0"],
    "conversation": ["conv_0", {"id": "conv_0"}],
    "store": [True, False],
    "stream": [True, False],
    "stream_options": [{"include_obfuscation": False}],
    "background": [True, False],
    "generate": [False, True],
    "temperature": [0, 0.7],
    "top_p": [1.0],
    "presence_penalty": [0],
    "frequency_penalty": [0],
    "max_output_tokens": [16, 200],
    "max_tool_calls": [1],
    "top_logprobs": [0, 2],
    "truncation": ["auto", "disabled"],
    "parallel_tool_calls": [True, False],
    "reasoning": [{"effort": "low", "summary": "auto"}, {"effort": None, "summary": "detailed"}],
    "text": [
        {"format": {"type": "text"}, "verbosity": "low"},
        {"format": {"type": "json_object"}},
        *(
            {"format": {"type": "json_schema", "name": "a", "schema": each, "strict": True}}
            for each in (SCHEMA, *SCHEMAS)
        ),
    ],
    "include": [["reasoning.encrypted_content"], ["message.output_text.logprobs"]],
    "metadata": [{"a": "b"}],
    "service_tier": ["auto", "priority"],
    "user": ["u"],
    "safety_identifier": ["s"],
    "prompt_cache_key": ["k"],
    "prompt_cache_retention": ["24h"],
    "prompt_cache_options": [{"prewarm": True}],
    "context_management": [[{"type": "compaction", "compact_threshold": 1000}]],
    "tool_choice": [
        *("auto", "none", "required", {"type": "function", "name": "look"}, {"type": "custom", "name": "patch"}),
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}, {"type": "shell"}]},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "namespace", "name": "files"}]},
    ],
    "tools": [TOOLS[:2], [TOOLS[0]]],
    "prompt": [{"id": "pmpt_1"}],
    "client_metadata": [{"x": 1}],
    "request_id": ["r", "resp_0", "conv_0"],
    "priority": [1],
    "cache_salt": ["s"],
    "previous_input_messages": [[], MESSAGES],
    "enable_response_messages": [True],
    "mm_processor_kwargs": [{}],
    "stop": ["END", ["a", "b"]],
    "seed": [7],
    "top_k": [5],
    "min_p": [0.5],
    "ignore_eos": [False],
    "repetition_penalty": [1.5],
    "stop_token_ids": [[264]],
    "logit_bias": [{"264": -100}],
    "structured_outputs": [{"choice": ["red", "green"]}, {"json": {"type": "object"}}],
    "background_options": [{"completion_window": "soonest"}],
    "unheard_of": [{"a": [1, 2, {"b": None}]}],
}


_CALLED = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Rome"}'}}
_PATCHED = {"id": "call_2", "type": "custom", "custom": {"name": "patch", "input": "*** Begin Patch"}}
CHAT_MESSAGES: list[list[Json]] = [  # each a list that can stand alone
    [{"role": "user", "content": "count to 3"}],
    [{"role": "user", "content": "call look for Rome", "name": "ada"}],
    [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": [{"type": "text", "text": "Now."}]}],
    [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look."},
                {"type": "image_url", "image_url": {"url": data_url(picture()), "detail": "low"}},
                {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,YQ=="}},
                {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            ],
        }
    ],
    [{"role": "assistant", "content": "Hello.", "refusal": None, "reasoning": "hm", "annotations": []}],
    [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "reasoning_content": "hm"}],
    [
        {"role": "assistant", "content": None, "tool_calls": [_CALLED, _PATCHED]},
        {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "done"}]},
    ],
    [
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "18 degrees"},
    ],
]
CHAT_FIELDS: dict[str, list[Json]] = {
    "model": ["demo"],
    "stream": [True, False],
    "n": [1, 3],
    "stop": ["2", ["2", "\u00e9", "END"]],
    "max_completion_tokens": [16, 200],
    "max_tokens": [16],
    "temperature": [0, 0.7],
    "seed": [1],
    "store": [True, False],
    "metadata": [{"a": "b"}],
    "logprobs": [True, False],
    "parallel_tool_calls": [True, False],
    "reasoning_effort": ["low", "minimal"],
    "include_reasoning": [False],
    "verbosity": ["low"],
    "modalities": [["text"]],
    "service_tier": ["auto", "priority"],
    "user": ["u"],
    "prompt_cache_key": ["k"],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}},
    ],
    "tools": [
        [
            {"type": "function", "function": {"name": "look", "parameters": SCHEMA}},
            {"type": "custom", "custom": {"name": "patch", "format": {"type": "text"}}},
        ]
    ],
    "tool_choice": ["none", "auto"],
    "functions": [[{"name": "look", "parameters": SCHEMA}]],
    "function_call": ["auto"],
}
