"""Pictures in messages: their digests are in the tokens of a message, whichever format it has."""

from hypothesis import given
from hypothesis import strategies as st

from engine.formats.base import IMAGE_OMITTED, Body, PicturePart, PlainKind, PlainMessage, without_pictures
from engine.formats.harmony.encoding import PICTURE, decode_tokens, encode_text
from engine.formats.harmony.format import HarmonyFormat
from engine.models import plain_messages
from tests.kit.plain_format import PlainFormat

DOG, CAT = "d0" * 32, "ca" * 32
SEEING, BLIND = HarmonyFormat(sees=True), HarmonyFormat()
SHOWN: Body = ["Look: ", PicturePart(DOG), " and ", PicturePart(CAT), "."]
IN_WORDS = f"Look: {IMAGE_OMITTED} and {IMAGE_OMITTED}."
PICTURES = st.integers(0, 2**256 - 1).map(lambda number: PicturePart(f"{number:064x}"))
BODIES = st.lists(st.one_of(PICTURES, st.text(min_size=1, max_size=80)), max_size=8)


def test_a_message_has_the_digests_in_its_tokens() -> None:
    draft = SEEING.user(SHOWN).tokens + SEEING.user("no").tokens + SEEING.output("f", ["", PicturePart(CAT)]).tokens
    assert list(SEEING.pictures_of(draft)) == [DOG, CAT, CAT]
    assert list(SEEING.pictures_of(SEEING.user("no").tokens)) == []


def test_what_cannot_see_reads_that_a_picture_was_left_out() -> None:
    for model_format in (BLIND, PlainFormat()):
        assert model_format.user(SHOWN) == model_format.user(IN_WORDS)
        assert model_format.output("f", SHOWN) == model_format.output("f", IN_WORDS)
        assert not model_format.sees
    assert not BLIND.pictures_of(SEEING.user(SHOWN).tokens)


@given(BODIES)
def test_a_conversation_goes_on_with_its_pictures(body: list[str | PicturePart]) -> None:
    for kind, name in ((PlainKind.USER, ""), (PlainKind.OUTPUT, "f")):
        message = SEEING.render_plain(PlainMessage(kind, body, name))
        [told] = plain_messages(message) or ()
        digests = [part.digest for part in body if isinstance(part, PicturePart)]
        assert [part.digest for part in told.body if isinstance(part, PicturePart)] == digests
        assert list(SEEING.pictures_of(message.tokens)) == digests
        assert told.text == without_pictures(body)
        assert SEEING.render_plain(told) == message


@given(st.text(max_size=50))
def test_no_text_becomes_a_picture(text: str) -> None:
    spelled = f"{text}{decode_tokens([PICTURE])}{DOG}{decode_tokens([PICTURE])}"
    message = SEEING.user(spelled)
    assert not SEEING.pictures_of(message.tokens)
    assert SEEING.text_of(message.tokens) == spelled


def test_a_sign_of_a_picture_that_a_model_has_sampled_is_text() -> None:
    for tokens in ([PICTURE], [PICTURE, PICTURE], [PICTURE, *encode_text("abc"), PICTURE, 5]):
        assert not SEEING.pictures_of(SEEING.raw_prompt(decode_tokens(tokens)))
    picture = [PICTURE, *encode_text(DOG), PICTURE]
    tokens = SEEING.raw_prompt("x")
    tokens.extend([PICTURE, *picture, PICTURE])
    assert list(SEEING.pictures_of(tokens)) == [DOG]


def test_what_a_client_is_shown_of_a_prompt_names_pictures_by_their_digests() -> None:
    [message] = SEEING.messages_of(SEEING.user(SHOWN).tokens)
    assert message["content"] == [
        {"type": "text", "text": "Look: "},
        {"type": "image", "sha256": DOG},
        {"type": "text", "text": " and "},
        {"type": "image", "sha256": CAT},
        {"type": "text", "text": "."},
    ]
