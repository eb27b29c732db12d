"""How a text is cut into chunks."""

from hypothesis import given
from hypothesis import strategies as st

from responses_app.protocol.files.searches import Chunking, chunks_of


def cut(text: str, size: int, overlap: int) -> list[str]:
    """Return the chunks."""
    return list(chunks_of(text, Chunking(size, overlap)))


def test_chunks_overlap_and_miss_nothing() -> None:
    words = [f"w{number}" for number in range(10)]  # of two tokens each
    assert cut(" ".join(words), 8, 4) == ["w0 w1 w2 w3", "w2 w3 w4 w5", "w4 w5 w6 w7", "w6 w7 w8 w9"]
    assert cut(" ".join(words), 100, 50) == [" ".join(words)]
    assert cut(" \n ", 8, 4) == []


def test_a_chunk_ends_where_a_paragraph_does_if_one_ends_in_its_second_half() -> None:
    assert cut("One two three. Four\n\nfive six seven", 6, 0) == ["One two three. Four", "five six seven"]
    assert cut("One. two three four five six seven", 6, 0)[0] == "One. two three four five", "not before"


def test_languages_without_spaces_are_cut_too() -> None:
    assert cut("海龟的壳是骨头。它们生活在海洋中。", 10, 0) == ["海龟的壳是骨头。", "它们生活在海洋中。"]
    assert [len(chunk) for chunk in cut("x" * 95, 10, 0)] == [90, 5]


@given(st.text(alphabet="ab. \n界,1", max_size=400), st.integers(2, 30), st.integers(0, 15))
def test_every_word_is_in_a_chunk_and_they_are_bounded(text: str, size: int, overlap: int) -> None:
    chunks = cut(text, size, min(overlap, size // 2))
    assert all(chunk.strip() == chunk != "" for chunk in chunks)
    assert set("".join(text.split())) == set("".join("".join(chunks).split()))
    assert len(chunks) <= max(1, len(text)) * 2
    if overlap == 0:
        assert "".join("".join(chunks).split()) == "".join(text.split())
