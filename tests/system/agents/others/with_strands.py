"""Strands with four tools: python with_strands.py ADDRESS API MODEL PROMPT. Prints the model's last message."""

import sys

from functions import bash, edit, read, write
from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel

address, api, name, prompt = sys.argv[1:]
if api == "MESSAGES":
    model = AnthropicModel(client_args={"base_url": address, "api_key": "none"}, model_id=name, max_tokens=10_000)
else:
    kind = OpenAIModel if api == "CHAT" else OpenAIResponsesModel
    model = kind(client_args={"base_url": f"{address}/v1", "api_key": "none"}, model_id=name)
offered = [tool(each) for each in (bash, read, write, edit)]
print(Agent(model=model, tools=offered, callback_handler=None)(prompt))
