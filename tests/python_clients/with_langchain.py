"""LangChain asks for a model in each of its three ways: python with_langchain.py BASE_URL API, responses or chat.

Prints a line of JSON for each.
"""

import functools
import json
import operator
import sys

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from trip import ASKED, REPEAT, Trip

WAYS = {"json_schema": ASKED, "function_calling": ASKED, "json_mode": REPEAT}


@tool
def find_hotel(city: str) -> str:
    """Find a hotel in a city."""
    return f"a hotel in {city}"


def main(base_url: str, api: str) -> None:
    """Ask in each way, strict and not, whole and streamed, and with a tool that has to be called; then a tool loop."""
    served = {"base_url": base_url, "api_key": "none", "max_retries": 0}
    chat = ChatOpenAI(model="demo", use_responses_api=api == "responses", stream_usage=True, **served)
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

    with_tool = chat.bind_tools([find_hotel])
    asked = HumanMessage("call find_hotel for Paris")
    said = functools.reduce(operator.add, with_tool.stream([asked]))
    (call,) = said.tool_calls
    answer = with_tool.invoke([asked, said, find_hotel.invoke(call)])
    used = [said.usage_metadata, answer.usage_metadata]
    print(json.dumps({"way": "loop", "answer": answer.text, "used": [each["total_tokens"] > 0 for each in used]}))
    if api == "chat":
        text = OpenAI(model="demo", **served).invoke("count to 3")
        # Else it would cut texts by the tokens of a model of OpenAI's, and load their names.
        embeddings = OpenAIEmbeddings(model="hashing-256", check_embedding_ctx_length=False, **served)
        print(json.dumps({"way": "others", "text": text, "dimensions": len(embeddings.embed_query("Paris"))}))


main(*sys.argv[1:])
