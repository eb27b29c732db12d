"""`bounded`: what a program calls has an end, whatever the program does with the errors that it gets.

Each call is kept in the response, with its arguments and what came of it. The model reads neither, so its context does
not bound them, as it bounds its own calls.
"""

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.calls import json_text
from responses_app.protocol.setting import MIB
from responses_app.tools.base import ToolFailed
from responses_app.tools.sandbox.cells import Answer

MAX_BYTES = 32 * MIB  # of the arguments of all calls of a program, and of what came of them
MAX_FAILED = 1000  # calls of a program that fail: one that goes on all the same is ended


def bounded(answer: Answer) -> Answer:
    """Return `answer` for one program. It raises `ToolFailed` once too many calls have failed."""
    used = failed = 0

    async def call(asked: JsonObject) -> JsonObject:
        nonlocal used, failed
        try:
            used += len(json_text(asked.get("arguments")))
        except TypeError:  # of `orjson`: it is stricter than Python's own, which has sent them
            said: JsonObject = {"error": "arguments may not have halves of characters, or deep nesting"}
        else:
            said = await answer(asked) if used <= MAX_BYTES else {"error": _too_much()}
        used += sum(len(str(each)) for each in said.values())
        if "error" in said:
            failed += 1
            if failed > MAX_FAILED:
                raise ToolFailed(f"more than {MAX_FAILED} calls of the program have failed, so it was ended.")
        return said

    return call


def _too_much() -> str:
    return f"no more tools may be called: the calls of a program have at most {MAX_BYTES} bytes in all"
