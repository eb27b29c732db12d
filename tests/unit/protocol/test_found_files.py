"""What the searches of a chain have found, as it is kept for citations."""

import orjson

from responses_app.protocol.files.vector_stores import MAX_RESULTS
from responses_app.protocol.requests.server_tools import MAX_KEPT, FoundFiles
from responses_app.tools.base import MAX_STATE_BYTES


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
