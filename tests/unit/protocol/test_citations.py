"""Citations become links and annotations, of files too, however the text is cut; what only looks like one stays."""

from collections.abc import Sequence

import orjson
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
from responses_app.protocol.files.searches import MAX_RESULTS
from responses_app.protocol.output.citations import (
    MAX_CITATIONS,
    MAX_FILES,
    MAX_PAGES_BYTES,
    CitationReader,
    ListedPage,
    PageStack,
    Piece,
    ProducedFiles,
    ShownPage,
    Sources,
    annotation,
    state_of,
)
from responses_app.protocol.requests.server_tools import MAX_KEPT, FoundFiles
from responses_app.tools.base import MAX_STATE_BYTES
from tests.kit.laws import new_stream

TURTLES = ("https://example.com/turtles_(animals)", "Turtles")
STACK = PageStack(
    [
        ShownPage(
            kind="search",
            url="",
            title="turtles",
            listed=[ListedPage(2, "https://a.example/", "A"), ListedPage(5, "https://b.example/", "B")],
        ),
        ShownPage(kind="page", url=TURTLES[0], title=TURTLES[1]),
    ]
)
NO_FILES = FoundFiles(None).file
LINK = "([example.com](https://example.com/turtles_%28animals%29))"


def read(*parts: str) -> list[Piece]:
    """Return the pieces of a text that comes in parts."""
    reader = CitationReader(Sources(STACK.source, NO_FILES))
    pieces = [piece for part in parts for piece in reader.read(part)]
    rest = reader.rest()
    return [*pieces, Piece(rest)] if rest else pieces


def annotations(pieces: list[Piece]) -> list[dict[str, object]]:
    found, length = [], 0
    for piece in pieces:
        if piece.cites:
            found.append(annotation(length, piece))
        length += len(piece.text)
    return found


def test_a_citation_is_a_link_and_its_annotation_covers_it() -> None:
    pieces = read("Bone【1†L9-L11】. And 【1†L3】")
    text = "".join(piece.text for piece in pieces)
    assert text == f"Bone {LINK}. And {LINK}"
    first, second = annotations(pieces)
    assert first == {
        "type": "url_citation",
        "start_index": 5,
        "end_index": 5 + len(LINK),
        "url": TURTLES[0],
        "title": TURTLES[1],
    }
    assert text[second["start_index"] : second["end_index"]] == LINK  # type: ignore[misc]


def test_a_link_ends_neither_markdown_nor_json() -> None:
    stack = PageStack([ShownPage(kind="page", url='https://user@a.example:81/x"y\\z?q=(1)<2> 3', title="T")])
    (piece,) = CitationReader(Sources(stack.source, NO_FILES)).read("【0†L1】")
    assert piece.text == "([a.example](https://user@a.example:81/x%22y%5Cz?q=%281%29%3C2%3E%203))"


@pytest.mark.parametrize(("line", "title"), [(2, "A"), (4, "A"), (5, "B"), (99, "B")])
def test_a_line_of_a_list_cites_its_result(line: int, title: str) -> None:
    (found,) = annotations(read(f"x【0†L{line}-L{line + 1}】"))
    assert found["title"] == title


@pytest.mark.parametrize(
    "text",
    [
        "【】",
        "【0†L0】",  # above the first result
        "【7†L1】",  # never shown
        "【1†",
        "a【b】c",
        "【1】",
        "【1†L1\n】",
        "【" * 50,
        "【1†" + "x" * 300 + "】",
        "【999999999999†L1】",
        "日本【注】",
    ],
)
def test_everything_else_stays_as_it_was_written(text: str) -> None:
    for parts in ([text], list(text)):
        pieces = read(*parts)
        assert "".join(piece.text for piece in pieces) == text
        assert annotations(pieces) == []


def test_text_is_held_back_only_where_it_may_be_a_citation() -> None:
    reader = CitationReader(Sources(STACK.source, NO_FILES))
    assert reader.read("see 【1") == [Piece("see ")]
    assert reader.read("†L2") == []
    assert reader.read("】 now") == [Piece(LINK, TURTLES), Piece(" now")]
    assert reader.read("【x") == [Piece("【x")]
    assert reader.read("【") == []
    assert reader.read("【") == [Piece("【")]
    assert (reader.rest(), reader.rest()) == ("【", "")


@given(
    st.lists(st.sampled_from(["a", " ", "【", "1", "0", "†", "L3", "-L4", "】", "【1†L1】", "é", "\n"]), max_size=30)
)
def test_how_a_text_is_cut_changes_nothing(parts: list[str]) -> None:
    cut, whole = read(*parts), read("".join(parts))
    assert "".join(piece.text for piece in cut) == "".join(piece.text for piece in whole)
    assert annotations(cut) == annotations(whole)


def test_a_stack_is_kept_as_json_and_forgets_what_is_old() -> None:
    stack = PageStack.from_json(None)
    assert (stack.next_cursor, stack.at(-1), stack.at(0), stack.source(0, 0)) == (0, None, None, None)
    for number in range(500):
        results = [ListedPage(2 + place, f"https://{number}.example/{place}", "T" * 50) for place in range(20)]
        stack.push(ShownPage(kind="search", url="", title="q" * 500, listed=tuple(results)))
        stack.push(ShownPage(kind="find", url="https://x.example/", title="X", pattern="p"))
    again = PageStack.from_json(stack.as_json())
    assert len(orjson.dumps(stack.as_json())) < MAX_PAGES_BYTES
    assert again.next_cursor == stack.next_cursor == 1000
    assert again.at(5) is None
    assert again.at(999) == again.at(-1) == stack.at(-1)
    assert again.at(998) == stack.at(998)
    assert again.source(998, 3) == ("https://499.example/1", "T" * 50)
    kept = [bool(each.listed) for each in again.pages if each.kind == "search"]
    assert kept == sorted(kept)
    assert 5 < sum(kept) < len(kept)
    assert PageStack.from_json(again.as_json()) == again
    assert again.source(-1, 0) is None


CITED_STACK = PageStack([ShownPage(kind="page", url="https://a.example/x", title="A page")])
SOURCES = Sources(CITED_STACK.source, FoundFiles({"first": 2, "found": [[["file-1", "a.txt"]]]}).file)
CITED_LINK = "([a.example](https://a.example/x))"
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
    assert part.text == f"Bone {CITED_LINK}, {CITED_LINK}."
    for index, (event, whole) in enumerate(zip((events[4], events[6]), part.annotations, strict=True)):
        added = ResponseOutputTextAnnotationAddedEvent.model_validate(event, strict=True)
        assert added.annotation.model_dump() == whole.model_dump()
        assert (added.annotation_index, added.content_index) == (index, 0)
        assert whole.type == "url_citation"
        assert (part.text[whole.start_index : whole.end_index], whole.title) == (CITED_LINK, "A page")
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
    assert [(each["delta"], len(each["logprobs"])) for each in deltas] == [(CITED_LINK, len(probs)), ("!", 1)]
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
    assert all(whole["text"][each["start_index"] : each["end_index"]] == CITED_LINK for each in whole["annotations"])


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


STATE = state_of("cntr_1", None, [("table.csv", "cfile_1"), ("plots/a.png", "cfile_2")])


def ranges(text: str, annotations: list[JsonObject]) -> list[tuple[object, str]]:
    """Return the file and the text of each annotation."""
    return [(each["file_id"], text[each["start_index"] : each["end_index"]]) for each in annotations]  # type: ignore[misc]


def test_a_message_cites_what_it_names() -> None:
    files = ProducedFiles()
    files.learn(STATE)
    text = "See [it](sandbox:/mnt/data/table.csv), and /mnt/data/plots/a.png. Not /mnt/data/other.csv."
    (first, second) = files.cite(text, is_last=True)
    assert ranges(text, [first, second]) == [
        ("cfile_1", "sandbox:/mnt/data/table.csv"),
        ("cfile_2", "/mnt/data/plots/a.png"),
    ]
    assert (first["container_id"], second["filename"]) == ("cntr_1", "a.png")
    assert files.cite(text, is_last=True) == [first, second]  # whenever it names them


def test_an_answer_cites_what_nothing_has_named_and_does_so_once() -> None:
    files = ProducedFiles()
    files.learn(STATE)
    assert files.cite("A word before a call.", is_last=False) == []
    text = "Done."
    assert ranges(text, files.cite(text, is_last=True)) == [("cfile_1", ""), ("cfile_2", "")]
    assert files.cite("Done again.", is_last=True) == []


def test_what_an_earlier_response_has_written_is_cited_where_it_is_named() -> None:
    files = ProducedFiles()
    files.know(STATE)
    assert files.cite("Nothing.", is_last=True) == []
    assert len(files.cite("/mnt/data/table.csv", is_last=True)) == 1
    files.learn(state_of("cntr_1", STATE, [("table.csv", "cfile_1")]))  # written once more
    assert len(files.cite("Nothing.", is_last=True)) == 1


def test_another_container_has_other_files() -> None:
    files = ProducedFiles()
    files.know(STATE)
    files.learn(state_of("cntr_2", STATE, [("table.csv", "cfile_9")]))
    assert [each["file_id"] for each in files.cite("/mnt/data/table.csv", is_last=True)] == ["cfile_9"]
    assert files.cite("/mnt/data/plots/a.png", is_last=True) == []


def test_files_with_long_names_are_remembered_as_long_as_a_state_may_be() -> None:
    long = "\x01" * 1000  # each is written as six characters
    written = [(f"{number}/{long}", f"cfile_{number}") for number in range(MAX_FILES)]
    state = state_of("cntr_1", None, written)
    assert len(orjson.dumps(state)) <= MAX_STATE_BYTES
    assert state["files"] == [list(each) for each in written[-len(state["files"]) :]] != []  # type: ignore[arg-type]


def test_it_is_bounded_and_takes_any_state() -> None:
    state = state_of("c", None, [(f"{number}", f"cfile_{number}") for number in range(2 * MAX_FILES)])
    assert len(state["files"]) == MAX_FILES  # type: ignore[arg-type]
    files = ProducedFiles()
    files.learn(state)
    assert len(files.cite("", is_last=True)) == MAX_CITATIONS
    for odd in ({}, {"files": 5}, {"files": [["a"], [1, 2], None]}, {"container_id": None, "written": {}}):
        files.learn(odd)  # type: ignore[arg-type]
        assert files.cite("/mnt/data/a", is_last=True) == []


def test_the_latest_searches_can_be_cited_as_many_as_a_state_may_hold() -> None:
    name = "ü" * 255
    found = FoundFiles(None)
    for search in range(20):
        found = FoundFiles(found.as_json())
        assert found.next_search == search
        found.add([(f"file-{search}", name)] * MAX_RESULTS)
        assert len(orjson.dumps(found.as_json())) <= MAX_STATE_BYTES
        assert found.file(search, MAX_RESULTS - 1) == (f"file-{search}", name)
    assert found.file(0, 0) is None


def test_of_short_names_more_searches_are_kept() -> None:
    found = FoundFiles(None)
    for search in range(20):
        found.add([(f"file-{search}", "a.txt")] * 10)
    assert found.file(0, 9) == ("file-0", "a.txt")
    found.add([("file-20", "a.txt")])
    assert (found.file(0, 0), found.file(1, 0)) == (None, ("file-1", "a.txt"))
    assert MAX_KEPT == 200
