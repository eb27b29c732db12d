"""Pictures in items: which of them a page shows, and by what name it calls the others."""

from collections.abc import Mapping
from typing import Any

import pytest
from django.test import Client

from responses_app.extensions.console.watch.family import asked_of
from responses_app.extensions.console.watch.page import LIVE_PICTURES
from responses_app.extensions.console.watch.text import MAX_PICTURES, PageRoom
from responses_app.extensions.console.watch.transcript import Block, PageTranscript
from responses_app.resources.conversations.model import Conversation, ConversationItem
from tests.inprocess.admin import samples

PNG = "data:image/png;base64,iVBORw0KGgo="
NO_PICTURES = [
    "https://elsewhere.example/a.png",
    "data:image/svg+xml;base64,PHN2Zz4=",
    "data:text/html;base64,PGI+",
    'data:image/png;base64," onerror=x',
    "data:image/png;base64," + "A" * (MAX_PICTURES + 1),
]


def image(url: object, **more: object) -> dict[str, object]:
    """A part of a message."""
    return {"type": "input_image", "image_url": url, **more}


def sent(*parts: object) -> dict[str, object]:
    """A message of a user."""
    return {"type": "message", "role": "user", "content": list(parts)}


def urls(block: Block | None) -> list[str]:
    """Return the pictures of a block."""
    return [picture.url for picture in block.pictures] if block else []


def test_figures_are_pictures_and_nothing_else_is() -> None:
    drawn = {"type": "code_interpreter_call", "code": "plot()", "outputs": [{"type": "logs", "logs": "2"}]}
    drawn["outputs"] = [{"type": "logs", "logs": "2"}, *({"type": "image", "url": url} for url in [PNG, *NO_PICTURES])]
    made = {"type": "image_generation_call", "revised_prompt": "a cat", "result": "iVBO", "output_format": "webp"}
    forged = {**made, "result": "iVBO", "output_format": 'png" onerror="x'}
    blocks = PageTranscript().read([drawn, made, forged])
    shown = [urls(block.answer) for block in blocks]
    assert shown == [[PNG], ["data:image/webp;base64,iVBO"], ["data:image/png;base64,iVBO"]]
    logs = blocks[0].answer
    assert logs.code.shown == "2"
    assert len(logs.chips) == len(NO_PICTURES)
    assert logs.chips[0] == f"image: {NO_PICTURES[0]}"
    assert "base64" not in str(logs.chips)


def test_a_message_shows_its_pictures_and_names_those_from_elsewhere() -> None:
    file = {"type": "input_file", "filename": "cat\u202e.png", "file_data": PNG}
    paper = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}
    (block,) = PageTranscript().read(
        [sent({"type": "input_text", "text": "Look"}, image(PNG), file, paper, *map(image, NO_PICTURES))]
    )
    assert [text.shown for text in block.texts] == ["Look"]
    assert [(each.url, each.alt) for each in block.pictures] == [(PNG, "Image from the user"), (PNG, "cat\\u202e.png")]
    assert block.chips == [
        "input_file: a.pdf",
        "input_image: https://elsewhere.example/a.png",
        "input_image: not shown here (34 characters)",
        "input_image: not shown here (26 characters)",
        "input_image: not shown here (33 characters)",
        "input_image: not shown here (4,000,023 characters)",
    ]
    (by_id,) = PageTranscript().read([sent(image(None, file_id="file-1"), image({"url": PNG}), image(7))])
    assert by_id.chips == ["input_image: file-1", "input_image", "input_image"]


@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output", "computer_call_output"])
def test_an_output_shows_its_pictures(kind: str) -> None:
    screen = {"type": "computer_screenshot", "image_url": PNG}
    block = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
    outputs: list[object] = [screen, [image(PNG), {"type": "input_text", "text": "so"}], [block], PNG]
    items = [{"type": kind, "call_id": str(at), "output": each} for at, each in enumerate(outputs)]
    blocks = PageTranscript().read(items)
    assert [urls(each) for each in blocks] == [[PNG]] * 4
    assert [len(each.texts) for each in blocks] == [0, 1, 0, 0]
    assert blocks[0].pictures[0].alt == "A screenshot"
    assert "base64" not in str([each.code for each in blocks])


def test_a_result_of_an_mcp_server_shows_its_pictures() -> None:
    content = [
        {"type": "text", "text": "Two of them"},
        {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},
        {"type": "image", "data": "PHN2Zz4=", "mimeType": "image/svg+xml"},
    ]
    call = {"type": "mcp_call", "server_label": "cam", "name": "look", "arguments": "{}"}
    blocks = PageTranscript().read([{**call, "output": each} for each in (content, PNG, "data:")])
    both, alone, text = (block.answer for block in blocks)
    assert (both.code.shown, urls(both)) == ("Two of them", [PNG])
    assert both.chips == ["image: not shown here (34 characters)"]
    assert (urls(alone), alone and alone.code) == ([PNG], None)
    assert text.code.shown == "data:"


def test_a_page_has_a_bounded_amount_of_pictures() -> None:
    large = "data:image/png;base64," + "A" * (MAX_PICTURES // 2)
    item = {"type": "code_interpreter_call", "outputs": [{"type": "image", "url": large}] * 3}
    (block,) = PageTranscript().read([item])
    assert (len(block.answer.pictures), len(block.answer.chips)) == (1, 2)
    (message,) = PageTranscript(PageRoom(pictures=1_000)).read([sent(*[image(PNG)] * 60)])
    assert len(message.pictures) == 1_000 // len(PNG)
    assert message.chips[-1] == "10 more parts"
    assert [picture.number for picture in message.pictures] == list(range(1, len(message.pictures) + 1))


def test_what_knows_more_pictures_is_asked_first() -> None:
    def stored(part: Mapping[str, Any]) -> str | None:
        return PNG if part.get("file_id") == "file-1" else None

    parts = image(None, file_id="file-1"), image("https://elsewhere.example/a.png"), image(PNG)
    (block,) = PageTranscript(picture_of=stored).read([sent(*parts)])
    assert urls(block) == [PNG]
    assert block.chips == ["input_image: https://elsewhere.example/a.png", "input_image"]


def test_a_page_that_is_sent_each_second_shows_small_ones_alone(admin: Client) -> None:
    large = "data:image/png;base64," + "A" * LIVE_PICTURES
    response = samples.response(1, asked=[sent(image(PNG), image(large))])
    page = f"/admin/responses_app/response/{response.pk}/change/"
    assert admin.get(page).content.count(b'id="picture-') == 2
    response.body["status"] = response.status = "in_progress"
    response.save()
    html = admin.get(page).content.decode()
    assert html.count('id="picture-') == 1
    assert "input_image: not shown here (200,022 characters)" in html


def test_in_the_tree_a_message_without_words_is_an_image() -> None:
    assert asked_of([samples.said("Hm"), sent(image(PNG))]) == "an image"
    assert asked_of([sent({"type": "input_text", "text": "Look"}, image(PNG))]) == "Look"


def test_the_pages_show_them_and_never_ask_another_server(admin: Client) -> None:
    items = [sent(image(PNG), image(NO_PICTURES[0]), image(NO_PICTURES[1]))]
    response = samples.response(1, asked=items)
    Conversation.objects.create(id="conv_1", created_at=response.created_at, next_position=2)
    ConversationItem.objects.create(
        conversation_id="conv_1", item_id="a", position=1, created_at=response.created_at, item=items[0]
    )
    for path in (f"response/{response.pk}", "conversation/conv_1"):
        answer = admin.get(f"/admin/responses_app/{path}/change/")
        html = answer.content.decode()
        html = html[html.index("<main") :]
        assert html.count("<img ") == 1
        assert f'<img src="{PNG}" alt="Image from the user"' in html
        assert '<details class="rs-picture" id="picture-1">' in html
        assert '<bdi class="chip">input_image: https://elsewhere.example/a.png</bdi>' in html
        assert "img-src 'self' data:;" in answer["Content-Security-Policy"]
