"""`image_generation` through a whole server and SDKs: where it is demanded, and in a history that a client carries."""

from collections.abc import Iterator

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.kit.image_server import ImageServer, as_base64, image_server, png
from tests.kit.server import Server
from tests.kit.threads import in_a_thread

EDIT = {"role": "user", "content": 'Please call image_generation.edit with "a red cat".'}


@pytest.fixture(scope="module")
def images() -> Iterator[ImageServer]:
    with in_a_thread(image_server()) as images:
        yield images


@pytest.fixture(scope="module")
def server(images: ImageServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("drawing"), image_service_url=images.url) as server:
        yield server


def test_one_that_is_demanded_is_made(server: Server) -> None:
    tool = {"type": "image_generation"}
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        response = client.responses.create(model="demo", input='Hi, "a dog".', tools=[tool], tool_choice=tool)
    (drawn,) = (item for item in response.output if item.type == "image_generation_call")
    assert (drawn.status, drawn.result) == ("completed", as_base64("a dog"))
    assert "The image was made" in response.output_text
    assert response.usage is not None
    assert response.usage.input_tokens < 2000, "the model does not read the image"


async def test_by_the_agents_sdk_with_a_history_that_it_carries(server: Server, images: ImageServer) -> None:
    from agents import Agent, ImageGenerationTool, OpenAIResponsesModel, Runner, set_tracing_disabled  # takes seconds

    set_tracing_disabled(True)
    tool = ImageGenerationTool(tool_config={"type": "image_generation", "size": "1024x1024"})
    async with AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
        agent = Agent(name="painter", model=OpenAIResponsesModel("demo", client), tools=[tool])
        first = await Runner.run(agent, "Please draw a cat.")
        await Runner.run(agent, [*first.to_input_list(), EDIT])
    assert images.asked[-1].files == [("image", png("a cat"))]
