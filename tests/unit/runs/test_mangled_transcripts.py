"""Whatever a model says, its response ends once, is not an error, and has every word; `make fuzz` tries many more."""

from collections import Counter

from engine.types import FinishReason
from responses_app.protocol.errors import JsonObject
from tests.kit.fakes import ANSWER, TOOL_F, FakeEngine, Site
from tests.kit.laws import assert_laws, is_subsequence, text_of
from tests.kit.mangling import KINDS, WORD, Mangled, mangled_transcripts, told

COUNT = 300


class _Mangling(FakeEngine):
    """Says one mangled transcript, and then answers properly: a model that was corrected is asked again."""

    def __init__(self, mangled: Mangled) -> None:
        finish = FinishReason.STOP if mangled.is_whole else FinishReason.LENGTH
        super().__init__([["it", finish], ANSWER])
        self._mangled = mangled

    def encode(self, said: str) -> list[int]:
        return list(self._mangled.tokens) if said == "it" else super().encode(said)


async def answer(mangled: Mangled) -> list[JsonObject]:
    """Return the events of a response whose model says this."""
    site = Site(_Mangling(mangled))
    return await (await site.begin(input="hi", tools=[TOOL_F])).to_the_end()


async def whole_response(mangled: Mangled) -> JsonObject:
    """Have a model say this, and return the response, which has ended as it should and lacks no word."""
    events = await answer(mangled)
    assert_laws(events)
    response = events[-1]["response"]
    assert response["error"] is None, told(mangled)
    assert is_subsequence(mangled.words, words_of(response)), told(mangled)
    return response


def words_of(response: JsonObject) -> list[str]:
    """Return every word that a client finds in a response's output, in order."""
    items: list[JsonObject] = response["output"]  # type: ignore[assignment]
    return [word for item in items for word in WORD.findall(text_of(item))]


async def test_no_error_no_lost_word_and_one_end_each() -> None:
    ends: Counter[str] = Counter()
    for mangled in mangled_transcripts(COUNT, seed=10):
        response = await whole_response(mangled)
        ends[f"{mangled.kind}: {response['status']}"] += 1
    whole = {kind for kind in KINDS if kind != "cut"}
    assert {kind for kind in whole if ends[f"{kind}: completed"] == COUNT // len(KINDS)} == whole
    assert ends["cut: incomplete"] + ends["cut: completed"] == COUNT // len(KINDS)
