"""A home assistant on a small real model that runs on this machine. `make run` starts it in the terminal.

The tools are a stage: they change nothing but a line of text. Three of them ask before they run, so you can approve,
edit or deny; kill the program while it asks, start it again, and it asks on.
"""

from ownloop import Agent, tool


@tool(read_only=True)
def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"It is 18 degrees and sunny in {city}."


@tool(approval="ask")
def set_lamp(on: bool) -> str:
    """Turn the lamp on or off."""
    return f"The lamp is {'on' if on else 'off'}."


@tool(approval="ask")
def set_temperature(degrees: int) -> str:
    """Set the heating to a temperature, in degrees Celsius."""
    return f"The heating is set to {degrees} degrees."


@tool(approval="ask")
def book_flight(origin: str, destination: str) -> str:
    """Book a flight from one city to another."""
    return f"Your flight from {origin} to {destination} is booked."


agent = Agent(
    "home",
    model="local",
    instructions="You are a helpful home assistant.",
    tools=[get_weather, set_lamp, set_temperature, book_flight],
    suggestions=[
        "What is the capital of France?",
        "What is the weather in Paris?",
        "Turn off the lamp.",
        "Set the temperature to 19 degrees.",
        "Book a flight from Madrid to Vienna.",
    ],
)
