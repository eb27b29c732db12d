"""An agent of OpenAI's Agents SDK whose model plans a warehouse's orders with a program: nine calls at once."""

from agents import Agent, ModelSettings, ProgrammaticToolCallingTool, function_tool
from pydantic import BaseModel

STOCK = {"lamp": (12, 18, 4), "keyboard": (7, 16, 2), "dock": (22, 14, 0)}
QUESTION = "[orders] What shall we order this week?"
PROGRAM = """
import asyncio, json

names = ["lamp", "keyboard", "dock"]
kinds = ["in_stock", "expected", "on_the_way"]
given = await asyncio.gather(*[call_tool_async(kind, product=name) for name in names for kind in kinds])
orders = {}
for place, name in enumerate(names):
    stock, expected, coming = (each["units"] for each in given[3 * place : 3 * place + 3])
    if expected + 5 > stock + coming:
        orders[name] = expected + 5 - stock - coming
print(json.dumps(orders))
"""


class Units(BaseModel):
    """What each tool gives."""

    product: str
    units: int


calls: list[tuple[str, str]] = []


@function_tool(allowed_callers=["programmatic"])
def in_stock(product: str) -> Units:
    """Tell how many units are there."""
    calls.append(("in_stock", product))
    return Units(product=product, units=STOCK[product][0])


@function_tool(allowed_callers=["programmatic"])
def expected(product: str) -> Units:
    """Tell how many units will be sold this week."""
    calls.append(("expected", product))
    return Units(product=product, units=STOCK[product][1])


@function_tool(allowed_callers=["programmatic"])
def on_the_way(product: str) -> Units:
    """Tell how many units arrive this week."""
    calls.append(("on_the_way", product))
    return Units(product=product, units=STOCK[product][2])


agent = Agent(
    name="Planner",
    instructions="Plan with a program.",
    model_settings=ModelSettings(tool_choice="programmatic_tool_calling"),
    tools=[in_stock, expected, on_the_way, ProgrammaticToolCallingTool()],
)
