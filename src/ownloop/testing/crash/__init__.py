"""The crash kit: kill an agent with SIGKILL at every position of a scenario, start it again, check what is left.

```python
# my_scenarios.py
REFUND = Scenario(
    agent=lambda model, outside: Agent("shop", model=model, tools=[refund], deps=outside),
    script=[call("refund", {"order": "A1"}), say("Done.")],
    people=ask_for_a_refund,          # async def ask_for_a_refund(people: People) -> None
    ends=["completed"],
)
```
`python -m ownloop.testing.crash my_scenarios` prints what was found; `crash_test("my_scenarios:REFUND")` returns it.

Positions are: before and after every write of the store, before and after every effect of a tool (`Outside.effect`),
and after each part of a response. Processes, kills and the SQLite file are real. Time is virtual and ids are seeded, so
a position is the same one in every run, and long waits take no time.
"""

from ownloop.testing.crash.report import Position, Report
from ownloop.testing.crash.run import crash_test
from ownloop.testing.crash.scenario import Outside, People, Scenario

__all__ = ["Outside", "People", "Position", "Report", "Scenario", "crash_test"]
