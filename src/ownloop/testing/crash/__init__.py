"""The crash kit: an agent is killed with SIGKILL at every position of a scenario, started again, and its journal checked.

```python
# my_scenarios.py
REFUND = Scenario(
    agent=lambda model, outside: Agent("shop", model=model, tools=[refund], deps=outside),
    script=[call("refund", {"order": "A1"}), say("Done.")],
    people=ask_for_a_refund,          # async def ask_for_a_refund(people: People) -> None
    ends=["completed"],
)
```
`python -m ownloop.testing.crash my_scenarios` prints what was found; `crash_test("my_scenarios:REFUND")` returns it to a test.

Positions are: before and after every write of the store, before and after every effect of a tool (`Outside.effect`), and
each part of a response. The processes, the kills and the SQLite file are real; time is virtual and ids are seeded, so a
position is the same one in every run, and a scenario with long waits takes no longer than its work.
"""

from ownloop.testing.crash.report import Position, Report
from ownloop.testing.crash.run import crash_test
from ownloop.testing.crash.scenario import Outside, People, Scenario

__all__ = ["Outside", "People", "Position", "Report", "Scenario", "crash_test"]
