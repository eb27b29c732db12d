"""What is said to routers does no harm where a vLLM itself reads it: its models of requests take and ignore it."""

from typing import Any

import orjson
import pytest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest

from engine.backends.vllm.routers import Dynamo, LlmD, Router
from engine.backends.vllm.wire import COMPLETIONS, GENERATE, Wire
from engine.types import GenerationRequest, Session

ASKED = GenerationRequest(
    request_id="r", prompt_token_ids=[1, 2], priority=-3, session=Session(id="x", parent="p", project="q", back_in=5.0)
)


@pytest.mark.parametrize("router", [LlmD("batch"), Dynamo()], ids=["llm-d", "dynamo"])
@pytest.mark.parametrize(("wire", "model"), [(GENERATE, GenerateRequest), (COMPLETIONS, CompletionRequest)])
def test_vllm_reads_a_request_as_it_would_without(router: Router, wire: Wire, model: Any) -> None:
    told = router.fields(ASKED)
    assert told
    plain, more = (
        model.model_validate(orjson.loads(wire.body(ASKED, model="m", max_tokens=5, priority=-3, more=fields)))
        for fields in ({}, told)
    )
    assert more.model_dump(exclude=set(told)) == plain.model_dump()
