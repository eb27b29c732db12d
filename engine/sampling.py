"""The fields of a request that say how tokens are sampled. Each is declared here, and nowhere else.

A field has its name, its type, the bounds of whoever invented it, and how engines call it (`Carried`). Everything that
takes one is made from that:

    TokenSampling     a roll-out's defaults, and the base of `TextSampling`
    TextSampling      requests for responses, chats and completions, and an engine's `SamplingOptions`
    MessagesSampling  the fields that Anthropic's API has

So is all that describes them: the playground's controls (`extensions/playground/page.py`), the table of sampling in the
reference, and the names that OpenAI does not have (`protocol/requests/create_fields.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class Carried:
    """How a field is told to engines, and shown to people."""

    usual: str = ""  # its value where neither the request nor the model says one
    llama: str | None = ""  # llama.cpp's name for it, where it is another one; None: this server carries it out there
    label: str = ""  # of a control; where there is none, its name with a capital letter
    hint: str = ""
    ends: bool = False  # it is about where a text ends, else about how tokens are drawn


def _without_point(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Of a field that is an integer, but a float in some SDKs, such as `top_k` in Google's: 40.0 is taken for 40.
WHOLE = BeforeValidator(_without_point)
_TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]  # keys of JSON are texts
_BIAS = "By token id, from -100 to 100"  # added to the tokens' logits
_LogitBias = Annotated[dict[_TokenId, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)]


class TokenSampling(BaseModel):
    """How a token is drawn; None leaves it to the model's own defaults."""

    model_config = ConfigDict(frozen=True, strict=True, defer_build=True)

    temperature: Annotated[float | None, Field(ge=0, le=2), Carried("1")] = None
    top_p: Annotated[float | None, Field(ge=0, le=1), Carried("1")] = None  # 0: only the likeliest token
    # -1 and 0: no bound, as vLLM has it.
    top_k: Annotated[int | None, Field(ge=-1, lt=2**31), WHOLE, Carried("all")] = None
    min_p: Annotated[float | None, Field(ge=0, le=1), Carried("0")] = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2), Carried("0")] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2), Carried("0")] = None
    repetition_penalty: Annotated[
        float | None, Field(gt=0, allow_inf_nan=False), Carried("1", llama="repeat_penalty")
    ] = None
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63), Carried("random")] = None


class TextSampling(TokenSampling):
    """How a text is sampled."""

    logit_bias: Annotated[_LogitBias | None, Carried('{"50256": -100}', hint=_BIAS)] = None
    # The tokenizer's own end of a text ends nothing; a stop token of the request does.
    ignore_eos: Annotated[bool | None, Carried(llama=None, label="Ignore the model's own end", ends=True)] = None

    def wishes(self) -> dict[str, Any]:
        """Return the options that are given, by the names here."""
        return {name: value for name in SAMPLED if (value := getattr(self, name)) is not None}


class MessagesSampling(BaseModel):
    """The sampling fields of Anthropic's API, within its bounds."""

    model_config = TokenSampling.model_config

    temperature: Annotated[float | None, Field(ge=0, le=1)] = None
    top_p: Annotated[float | None, Field(ge=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=0, lt=2**31), WHOLE] = None


SAMPLED: Mapping[str, FieldInfo] = TextSampling.model_fields


def carried(name: str) -> Carried:
    """Return how a field is told to engines, and shown to people."""
    return next(each for each in SAMPLED[name].metadata if isinstance(each, Carried))


def bounds_of(name: str) -> dict[str, float]:
    """Return the bounds of a number: `ge` and `gt`, `le` and `lt`, as far as there are any."""
    return {
        bound: getattr(each, bound)
        for each in SAMPLED[name].metadata
        for bound in ("ge", "gt", "le", "lt")
        if getattr(each, bound, None) is not None
    }


def kind_of(name: str) -> type:
    """Return the type of a field's value: `float`, `int`, `bool` or `dict`."""
    kind = get_args(SAMPLED[name].annotation)[0]
    return dict if get_origin(kind) is Annotated or get_origin(kind) is dict else kind
