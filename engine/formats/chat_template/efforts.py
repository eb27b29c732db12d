"""How much a model is to think → what its chat template is told.

Templates of families that think by default (Qwen3, GLM, …) know `enable_thinking`, those of others (DeepSeek, Granite)
`thinking`; some know `reasoning_effort`. A template looks at no variable that it does not know.
"""

from collections.abc import Mapping
from typing import Any

NONE = "none"
_WITHOUT_THOUGHTS: Mapping[str, Any] = {"enable_thinking": False, "thinking": False}


def template_kwargs(effort: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a template is told of an effort: none, low, medium or high. `own` is what an operator adds to it.

    An operator's word counts before the effort's, but not before a request that wants no thoughts.
    """
    return {"reasoning_effort": effort, **own, **(_WITHOUT_THOUGHTS if effort == NONE else {})}
