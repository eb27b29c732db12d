"""How vectors are written."""

from array import array
from base64 import b64encode

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from responses_app.protocol.stateless import embeddings
from responses_app.protocol.stateless.embeddings import EmbeddingsHead, EncodingFormat, encode_answer

VECTORS = st.lists(st.lists(st.floats(width=32)), max_size=4)


@settings(max_examples=30)
@given(VECTORS, st.text(), st.sampled_from(["float", "base64"]))
def test_an_answer_is_the_json_of_its_parts(numbers: list[list[float]], model: str, encoding: EncodingFormat) -> None:
    vectors = [array("f", each) for each in numbers]
    head = EmbeddingsHead("embd-1", 7, model)
    content = encode_answer(vectors, head=head, tokens=3, encoding=encoding).content
    written = [each.tolist() if encoding == "float" else b64encode(each.tobytes()).decode() for each in vectors]
    data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(written)]
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    assert content == orjson.dumps({"object": "list", "data": data, **head._asdict(), "usage": usage})


def test_each_vector_is_written_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """`orjson.dumps` lets nothing else run meanwhile, also on a thread."""
    written: list[bytes] = []
    real = orjson.dumps

    def dumps(value: object) -> bytes:
        written.append(real(value))
        return written[-1]

    monkeypatch.setattr(embeddings.orjson, "dumps", dumps)
    encode_answer([array("f", [0.5] * 100)] * 5, head=EmbeddingsHead("e", 1, "m"), tokens=1, encoding="float")
    assert max(map(len, written)) < 600
