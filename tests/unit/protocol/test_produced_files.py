"""Files that code has written, and those that searches have found, as messages cite them."""

import orjson

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files.vector_stores import MAX_RESULTS
from responses_app.protocol.output.citations import MAX_CITATIONS, MAX_FILES, ProducedFiles, state_of
from responses_app.protocol.requests.server_tools import MAX_KEPT, FoundFiles
from responses_app.tools.base import MAX_STATE_BYTES

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
