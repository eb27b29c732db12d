"""OpenAI's order of events inside an item of each type, a letter an event."""

import re

ORDER = {
    "message": re.compile(r"AP(?:tn*)*TpD"),  # an annotation follows the text that it covers
    "reasoning": re.compile(r"AP(?:r)*Rp(?:S(?:s)+Zz)?D|AD"),  # with its summary; or with nothing but a seal
    "function_call": re.compile(r"A(?:f)*FD"),
    "custom_tool_call": re.compile(r"A(?:u)*UD"),
    "compaction": re.compile(r"AcD"),
    "code_interpreter_call": re.compile(r"Ai(?:k)*K(?:gG?)?D"),
    "mcp_call": re.compile(r"Aj(?:m)*M[YN]?D"),
    "mcp_list_tools": re.compile(r"Al[LE]D"),
    "mcp_approval_request": re.compile(r"AD"),
    "web_search_call": re.compile(r"Aw(?:vV?)?D"),
    "image_generation_call": re.compile(r"Ax(?:y(?:q)*Q?)?D"),
    **dict.fromkeys(("local_shell_call", "shell_call", "apply_patch_call", "tool_search_call"), re.compile(r"AD")),
}
LETTERS = {
    "response.output_item.added": "A",
    "response.output_item.done": "D",
    "response.content_part.added": "P",
    "response.content_part.done": "p",
    "response.output_text.delta": "t",
    "response.output_text.done": "T",
    "response.output_text.annotation.added": "n",
    "response.reasoning_text.delta": "r",
    "response.reasoning_text.done": "R",
    "response.function_call_arguments.delta": "f",
    "response.function_call_arguments.done": "F",
    "response.custom_tool_call_input.delta": "u",
    "response.custom_tool_call_input.done": "U",
    "response.compaction.compacting": "c",
    "response.reasoning_summary_part.added": "S",
    "response.reasoning_summary_text.delta": "s",
    "response.reasoning_summary_text.done": "Z",
    "response.reasoning_summary_part.done": "z",
    "response.output_item.interrupted": "I",
    "response.code_interpreter_call.in_progress": "i",
    "response.code_interpreter_call_code.delta": "k",
    "response.code_interpreter_call_code.done": "K",
    "response.code_interpreter_call.interpreting": "g",
    "response.code_interpreter_call.completed": "G",
    "response.mcp_call.in_progress": "j",
    "response.mcp_call_arguments.delta": "m",
    "response.mcp_call_arguments.done": "M",
    "response.mcp_call.completed": "Y",
    "response.mcp_call.failed": "N",
    "response.mcp_list_tools.in_progress": "l",
    "response.mcp_list_tools.completed": "L",
    "response.mcp_list_tools.failed": "E",
    "response.web_search_call.in_progress": "w",
    "response.web_search_call.searching": "v",
    "response.web_search_call.completed": "V",
    "response.image_generation_call.in_progress": "x",
    "response.image_generation_call.generating": "y",
    "response.image_generation_call.partial_image": "q",
    "response.image_generation_call.completed": "Q",
}
AT_ONCE = ("mcp_list_tools", "mcp_approval_request")  # items without a status, and without a text that grows
TEXTS = {"custom_tool_call": "input", "mcp_call": "arguments", "code_interpreter_call": "code"}  # where they stand
