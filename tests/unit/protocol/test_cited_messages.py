"""Messages that cite, as streams say them: deltas, annotations, and the whole at the end."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseOutputMessage, ResponseOutputTextAnnotationAddedEvent

from engine.formats.base import (
    ItemEnded,
    ItemKind,
    ItemStarted,
    MessageKind,
    RenderedMessage,
    Text,
    TextLogprob,
    as_tokens,
)
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.output.citations import PageStack, ShownPage, Sources
from responses_app.protocol.requests.server_tools import FoundFiles
from tests.kit.laws import new_stream

STACK = PageStack([ShownPage(kind="page", url="https://a.example/x", title="A page")])
SOURCES = Sources(STACK.source, FoundFiles({"first": 2, "found": [[["file-1", "a.txt"]]]}).file)
LINK = "([a.example](https://a.example/x))"
END = ItemEnded(RenderedMessage(MessageKind.FINAL, as_tokens([1])))
CUT = ItemEnded(RenderedMessage(MessageKind.FINAL, as_tokens([1])), truncated=True)


def said(texts: Sequence[Text], end: ItemEnded = END, kind: ItemKind = ItemKind.ANSWER) -> list[JsonObject]:
    """Return the events of a message that may cite a page."""
    stream = new_stream()
    stream.sources = SOURCES
    stream.start()
    events = stream.receive_all([ItemStarted(kind), *texts, end])
    return [{"type": event.type, "sequence_number": event.sequence_number, **event.fields} for event in events]


def test_an_annotation_follows_the_text_that_it_covers() -> None:
    events = said([Text("Bone"), Text("【0†"), Text("L3】"), Text(", 【0†L1】.")])
    assert [event["type"].removeprefix("response.") for event in events] == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.annotation.added",
        "output_text.delta",
        "output_text.annotation.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    message = ResponseOutputMessage.model_validate(events[-1]["item"])
    part = message.content[0]
    assert part.type == "output_text"
    assert part.text == f"Bone {LINK}, {LINK}."
    for index, (event, whole) in enumerate(zip((events[4], events[6]), part.annotations, strict=True)):
        added = ResponseOutputTextAnnotationAddedEvent.model_validate(event, strict=True)
        assert added.annotation.model_dump() == whole.model_dump()
        assert (added.annotation_index, added.content_index) == (index, 0)
        assert whole.type == "url_citation"
        assert (part.text[whole.start_index : whole.end_index], whole.title) == (LINK, "A page")
    assert events[8]["part"]["annotations"] == events[-1]["item"]["content"][0]["annotations"]


@pytest.mark.parametrize(("end", "status"), [(END, "completed"), (CUT, "incomplete")])
def test_what_is_held_back_is_said_at_the_end(end: ItemEnded, status: str) -> None:
    events = said([Text("a【0†L")], end, ItemKind.PREAMBLE)
    deltas = [event["delta"] for event in events if event["type"].endswith(".delta")]
    assert deltas == ["a", "【0†L"]
    item = events[-1]["item"]
    assert (item["status"], item["phase"], item["content"][0]["text"]) == (status, "commentary", "a【0†L")


def test_log_probabilities_of_held_text_come_with_what_is_said_then() -> None:
    probs = [TextLogprob(letter.encode(), -1.0) for letter in "【0†L3】"]
    texts = [Text(each.token.decode(), (each,)) for each in probs]
    events = said([*texts, Text("!", (TextLogprob(b"!", -2.0),))])
    deltas = [event for event in events if event["type"].endswith(".delta")]
    assert [(each["delta"], len(each["logprobs"])) for each in deltas] == [(LINK, len(probs)), ("!", 1)]
    assert len(events[-1]["item"]["content"][0]["logprobs"]) == len(probs) + 1


@given(st.text("ab 【】0†L3\n", max_size=40), st.lists(st.integers(1, 5), min_size=1, max_size=10))
def test_however_the_text_is_cut_the_deltas_are_the_text_and_annotations_cover_links(
    text: str, sizes: list[int]
) -> None:
    parts, rest = [], text
    while rest:
        size = sizes[len(parts) % len(sizes)]
        parts.append(Text(rest[:size]))
        rest = rest[size:]
    events = said(parts)
    whole = events[-1]["item"]["content"][0]
    assert "".join(event["delta"] for event in events if event["type"].endswith(".delta")) == whole["text"]
    assert whole == said([Text(text)] if text else [])[-1]["item"]["content"][0]
    assert all(whole["text"][each["start_index"] : each["end_index"]] == LINK for each in whole["annotations"])


def test_a_file_is_cited_at_the_place_of_its_citation_also_at_the_end() -> None:
    events = said([Text("Bone【2:"), Text("0†a.t"), Text("xt】, and more【2:0】")])
    kinds = [event["type"].removeprefix("response.output_text.") for event in events[2:-2]]
    assert kinds == ["delta", "delta", "annotation.added", "annotation.added", "done"]
    part = ResponseOutputMessage.model_validate(events[-1]["item"]).content[0]
    assert part.type == "output_text"
    assert part.text == "Bone, and more"
    assert [each.model_dump() for each in part.annotations] == [
        {"type": "file_citation", "file_id": "file-1", "filename": "a.txt", "index": index} for index in (4, 14)
    ]
    added = [event["annotation"] for event in events if event["type"].endswith("annotation.added")]
    assert added == [each.model_dump() for each in part.annotations]


def test_what_was_never_found_stays_as_it_was_written() -> None:
    text = "Bone【1:0†a.txt】【2:1】【2:x】【3:0†"
    part = said([Text(text)])[-1]["item"]["content"][0]  # type: ignore[index]
    assert (part["text"], part["annotations"]) == (text, [])
