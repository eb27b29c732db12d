"""`GET /models`."""

from responses_app.command_line.conformance.asking import sources
from responses_app.command_line.conformance.asking.checks import Group
from responses_app.command_line.conformance.asking.shapes import MODEL, require
from responses_app.command_line.conformance.asking.talk import Talk, good
from responses_app.command_line.conformance.asking.verdicts import Failed, expect

GROUP = Group("models", "Models")


@GROUP.check("list", sources.MODELS)
async def _list(talk: Talk) -> None:
    """`GET /models` lists models with `id`, `object`, `created`, `owned_by`."""
    body = good(await talk.there("GET", "/models"))
    expect(body["object"] == "list", f"'object' is {body['object']!r}")
    expect(body["data"], "there is no model")
    for model in body["data"]:
        require(model, MODEL, "a model")


@GROUP.check("named", sources.MODELS)
async def _named(talk: Talk) -> None:
    """`GET /models` has the model that requests name."""
    names = [model["id"] for model in good(await talk.there("GET", "/models"))["data"]]
    expect(talk.model in names, f"{talk.model!r} is not among {names[:20]}")


@GROUP.check("one", sources.MODELS)
async def _one(talk: Talk) -> None:
    """`GET /models/{model}` answers the model, also where its name has a slash."""
    model = require(good(await talk.there("GET", f"/models/{talk.model}")), MODEL, "the model")
    expect((model["id"], model["object"]) == (talk.model, "model"), f"{model}")


@GROUP.check("unknown", sources.MODELS)
async def _unknown(talk: Talk) -> None:
    """`GET /models/{model}` answers 404 with an error for a name that no model has."""
    await talk.there("GET", f"/models/{talk.model}")
    answer = await talk.ask("GET", "/models/no-such-model")
    if answer.status != 404:
        raise Failed(f"answered {answer.status}: {answer.told}")
    expect(answer.error["message"], "the error has no message")
