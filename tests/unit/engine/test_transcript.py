"""How the engines without a model read a prompt: by its token ids."""

from collections.abc import Sequence

import pytest

from engine.backends import simulated
from engine.backends.demo.replies import reply_tokens
from engine.backends.simulated import PromptTranscript, turn_beginnings
from engine.formats.base import as_tokens
from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from engine.formats.harmony.prompt import generation_start
from tests.unit.engine.prompts import answer, called, declare, prompt, users


def test_a_turn_that_was_cut_anywhere_began_where_it_began() -> None:
    asked = [*users("count"), *generation_start()]
    said = encode_harmony("<|channel|>analysis<|message|>Well.<|end|><|start|>assistant<|channel|>final<|message|>1 2")
    for cut in range(len(said) + 1):
        assert turn_beginnings([*asked, *said[:cut]])[0] == len(asked)


class TestTranscript:
    def test_it_reads_messages_by_token_id(self) -> None:
        tokens = [*declare(nop=None), *users("Hi <|end|>"), *called("a.b-c", "<|start|>user<|message|>no<|end|>")]
        read = PromptTranscript([*tokens, *generation_start()])
        roles = [message.role for message in read.messages]
        assert roles == ["system", "developer", "user", "assistant", "functions.a.b-c"]
        assert read.last_user is not None
        assert read.last_user.text() == "Hi <|end|>"
        assert read.messages[3].called == "a.b-c"
        assert read.messages[4].output_of == "a.b-c"
        assert read.messages[4].text() == "<|start|>user<|message|>no<|end|>"
        assert read.last == read.since_last_user()[-1]

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "<|start|>",
            "<|start|><|start|><|end|>",
            "<|end|><|message|>",
            "<|start|>user<|message|>",
            "text without any message",
            "<|start|>assistant",
            "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        ],
    )
    def test_odd_prompts_have_no_messages(self, text: str) -> None:
        read = PromptTranscript(encode_harmony(text))
        assert read.messages == ()
        assert read.last is None
        assert read.user_messages == 0

    def test_a_message_without_an_end_ends_where_the_next_starts(self) -> None:
        tokens = encode_harmony("<|start|>user<|message|>a<|start|>user<|message|>b<|end|>")
        assert [message.text() for message in PromptTranscript(tokens).messages] == ["a", "b"]

    def test_a_packed_prompt_reads_like_a_list(self) -> None:
        tokens = [*declare(nop=None), *users("One", "Two"), *called("nop", "done"), *generation_start()]
        packed, listed = PromptTranscript(as_tokens(tokens)), PromptTranscript(tokens)
        assert packed.user_messages == 2
        assert [message.text() for message in packed.messages] == [message.text() for message in listed.messages]
        assert reply_tokens(as_tokens(tokens)) == reply_tokens(tokens)

    def test_old_messages_are_not_decoded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        decoded: list[int] = []

        def decode(token_ids: Sequence[int]) -> str:
            decoded.append(len(token_ids))
            return decode_tokens(token_ids)

        monkeypatch.setattr(simulated, "decode_tokens", decode)
        assert "user message 2" in answer(prompt("old " * 10_000, "Hi"))
        assert sum(decoded) < 20
