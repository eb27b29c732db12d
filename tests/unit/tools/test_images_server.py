"""`image_generation` through whole servers and OpenAI's SDK: the demo engine has a service on loopback paint."""

from collections.abc import Iterator

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from tests.kit.image_server import ImageServer, as_base64, image_server, png
from tests.kit.server import Server
from tests.kit.threads import in_a_thread

ASKED = "Please draw a cat."
EDIT = 'Please call image_generation.edit with "a red cat".'
TOOLS = [{"type": "image_generation", "partial_images": 1}]


@pytest.fixture(scope="module")
def images() -> Iterator[ImageServer]:
    """The service."""
    with in_a_thread(image_server()) as images:
        yield images


@pytest.fixture(scope="module")
def server(images: ImageServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that has images made there."""
    with Server(tmp_path_factory.mktemp("drawing"), image_service_url=images.url) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    """The SDK."""
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client


def assert_drawn(response: Response, what: str = "a cat", action: str = "generate") -> None:
    """Assert that a response has an image of something, and says so."""
    assert response.status == "completed"
    (drawn,) = (item for item in response.output if item.type == "image_generation_call")
    assert (drawn.status, drawn.action, drawn.result) == ("completed", action, as_base64(what))
    assert "The image was made" in response.output_text
    assert response.usage is not None
    assert response.usage.input_tokens < 2000, "the model does not read the image"


def test_in_the_background_and_edited_along_a_chain(client: OpenAI, images: ImageServer) -> None:
    response = client.responses.create(model="demo", input=ASKED, tools=TOOLS, background=True)
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id)
    assert_drawn(response)
    again = client.responses.create(model="demo", input=EDIT, tools=TOOLS, previous_response_id=response.id)
    assert_drawn(again, "a red cat", "edit")
    assert images.asked[-1].files == [("image", png("a cat"))]
    reference = {"type": "item_reference", "id": again.output[1].id}
    third = client.responses.create(model="demo", input=[reference, {"role": "user", "content": EDIT}], tools=TOOLS)
    assert_drawn(third, "a red cat", "edit")
    assert images.asked[-1].files == [("image", png("a red cat"))]


def test_when_it_is_demanded_and_when_it_fails(client: OpenAI) -> None:
    response = client.responses.create(
        model="demo", input='Hi, "a dog".', tools=TOOLS, tool_choice={"type": "image_generation"}
    )
    assert_drawn(response, "a dog")
    response = client.responses.create(model="demo", input="draw a forbidden thing", tools=TOOLS)
    (drawn,) = (item for item in response.output if item.type == "image_generation_call")
    assert (drawn.status, drawn.result, response.status) == ("failed", None, "completed")
    assert drawn.error is not None
    assert (drawn.error.type, drawn.error.code) == ("image_generation_user_error", "moderation_blocked")


async def test_by_the_agents_sdk_with_a_history_that_it_carries(server: Server, images: ImageServer) -> None:
    from agents import Agent, ImageGenerationTool, OpenAIResponsesModel, Runner, set_tracing_disabled  # takes seconds

    set_tracing_disabled(True)
    tool = ImageGenerationTool(tool_config={"type": "image_generation", "size": "1024x1024"})
    async with AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
        agent = Agent(name="painter", model=OpenAIResponsesModel("demo", client), tools=[tool])
        first = await Runner.run(agent, ASKED)
        await Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": EDIT}])
    assert images.asked[-1].files == [("image", png("a cat"))]
