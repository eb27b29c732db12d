"""LangChain in both its modes, over the Responses API and over chats: python with_langchain.py BASE_URL.

It asks for a model in each of its three ways, for texts, calls and embeddings. Prints a line of JSON for each.
"""

import functools
import json
import operator
import sys
from typing import Any

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from trip import ASKED, REPEAT, TOO_LONG, Trip

WAYS = {"json_schema": ASKED, "function_calling": ASKED, "json_mode": REPEAT}


@tool
def find_hotel(city: str) -> str:
    """Find a hotel in a city."""
    return f"a hotel in {city}"


def say(api: str, way: str, **told: object) -> None:
    """Print what a test reads."""
    print(json.dumps({"api": api, "way": way, **told}))


def ask_for_models(chat: ChatOpenAI, api: str) -> None:
    """Ask for a model in each way, strict and not, whole and streamed, and for a call that has to be made."""
    for method, prompt in WAYS.items():
        for strict in (None, True) if method != "json_mode" else (None,):
            asked = chat.with_structured_output(Trip, method=method, strict=strict)
            way = f"{method}, strict" if strict else method
            say(api, way, output=asked.invoke(prompt).model_dump())
            *_, last = asked.stream(prompt)
            say(api, f"{way}, streamed", output=Trip.model_validate(last).model_dump())
    for choice in ("required", "find_hotel"):
        (call,) = chat.bind_tools([find_hotel], tool_choice=choice).invoke("Where to sleep?").tool_calls
        say(api, choice, call=call["name"], arguments=call["args"])


def whole(chat: Any, messages: list[Any]) -> AIMessage:
    """Ask for an answer at once."""
    return chat.invoke(messages)


def streamed(chat: Any, messages: list[Any]) -> AIMessage:
    """Ask for an answer in chunks, and return their sum."""
    return functools.reduce(operator.add, chat.stream(messages))


def talk(chat: ChatOpenAI, api: str) -> None:
    """Let it count, then call a function and hear what came of it."""
    with_tool = chat.bind_tools([find_hotel])
    for ask in (whole, streamed):
        text = ask(chat, [HumanMessage("count to 5")]).text
        asked = HumanMessage("call find_hotel for Paris")
        said = ask(with_tool, [asked])
        (call,) = said.tool_calls
        answer = ask(with_tool, [asked, said, find_hotel.invoke(call)])
        used = [each.usage_metadata["total_tokens"] > 0 for each in (said, answer)]
        say(api, "loop", how=ask.__name__, text=text, answer=answer.text, used=used)


def exceed(chat: ChatOpenAI, api: str) -> None:
    """Ask with more than the model reads, which LangChain tells from other errors."""
    for ask in (whole, streamed):
        try:
            ask(chat, [HumanMessage(TOO_LONG)])
        except ContextOverflowError:
            say(api, "too long", how=ask.__name__)


def main(base_url: str) -> None:
    """Ask over both APIs, and for what else LangChain asks of such a server."""
    served = {"base_url": base_url, "api_key": "none", "max_retries": 0}
    for api in ("responses", "chat"):
        chat = ChatOpenAI(model="demo", use_responses_api=api == "responses", stream_usage=True, **served)
        ask_for_models(chat, api)
        talk(chat, api)
        exceed(chat, api)
    complete = OpenAI(model="demo", **served)
    texts = [complete.invoke("count to 3"), "".join(complete.stream("count to 3"))]
    # Else it would cut texts by the tokens of a model of OpenAI's, and load their names.
    embeddings = OpenAIEmbeddings(model="hashing-256", check_embedding_ctx_length=False, **served)
    say("others", "others", texts=texts, dimensions=len(embeddings.embed_query("Paris")))


main(*sys.argv[1:])
