"""LangChain asks for a model in each of its three ways: python with_langchain.py BASE_URL.

Prints a line of JSON for each.
"""

import json
import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from trip import ASKED, REPEAT, Trip

WAYS = {"json_schema": ASKED, "function_calling": ASKED, "json_mode": REPEAT}


@tool
def find_hotel(city: str) -> str:
    """Find a hotel in a city."""
    return f"a hotel in {city}"


def main(base_url: str) -> None:
    """Ask in each way, strict and not, whole and as a stream, and with a tool that has to be called."""
    chat = ChatOpenAI(model="demo", base_url=base_url, api_key="none", use_responses_api=True, max_retries=0)
    for method, prompt in WAYS.items():
        for strict in (None, True) if method != "json_mode" else (None,):
            asked = chat.with_structured_output(Trip, method=method, strict=strict)
            way = f"{method}, strict" if strict else method
            print(json.dumps({"way": way, "output": asked.invoke(prompt).model_dump()}))
            *_, last = asked.stream(prompt)
            print(json.dumps({"way": f"{way}, streamed", "output": Trip.model_validate(last).model_dump()}))
    for choice in ("required", "find_hotel"):
        (call,) = chat.bind_tools([find_hotel], tool_choice=choice).invoke("Where to sleep?").tool_calls
        print(json.dumps({"way": choice, "call": call["name"], "arguments": call["args"]}))


main(sys.argv[1])
