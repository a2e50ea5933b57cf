"""A report that the person pays for. It is made once, and refunded if it cannot be made.

elicit serve paid_report:mcp
"""

from datetime import date
from functools import partial

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

from flows import Money, elicit

mcp = MCPServer("paid reports")
PRICE = Money("9.00", "EUR")
POPULATION = {"Vienna": 2_005_760, "Graz": 298_479}  # simulates a service that you pay for
made: list[str] = []


class Report(BaseModel):
    city: str
    people: int
    made_on: date


async def make_report(city: str) -> Report:
    made.append(city)
    people = POPULATION[city]  # raises KeyError if there is no data about the city
    return Report(city=city, people=people, made_on=date(2026, 1, 1))


@mcp.tool()
async def buy_report(city: str) -> str:
    """Sell the person a report about a city."""
    receipt = await elicit.payment(PRICE, f"Report about {city}")
    try:
        # `once`: repeating the call returns the same report instead of making another one.
        report = await elicit.once("report", partial(make_report, city))
    except KeyError:
        refund = await receipt.refund(reason="There is no data about this city.")
        return f"There is no data about {city}. The refund of {receipt.price} is {refund.status}."
    return f"{report.city} had {report.people} people on {report.made_on}. {receipt.price} paid."
