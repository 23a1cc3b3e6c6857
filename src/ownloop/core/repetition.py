"""Notice a model that does the same thing again and again. Pure."""

from __future__ import annotations

from dataclasses import replace

from ownloop.core.codec import canonical
from ownloop.core.events import ToolEnded
from ownloop.core.messages import TextBlock, ToolCallBlock, ToolResultBlock
from ownloop.core.run import RunState

TIMES = 4
HINT = f"(This call was made {TIMES} times in a row with the same result. Try something else, or finish.)"


def with_hint(run: RunState, ended: ToolEnded) -> ToolEnded:
    """Return the result with a hint to the model if it is the fourth equal one of equal calls in a row."""
    call = run.calls.get(ended.call_id)
    if call is None or len(run.calls) != 1 or ended.status in ("unknown", "not_run"):
        return ended
    this = (call.name, canonical(call.block.input))
    same = 1
    calls: dict[str, ToolCallBlock] = {}
    for message in run.messages:
        calls |= {block.call_id: block for block in message.blocks if isinstance(block, ToolCallBlock)}
    for message in reversed([m for m in run.messages if m.role == "tool"]):
        result = message.blocks[0]
        before = calls.get(result.call_id) if isinstance(result, ToolResultBlock) and len(message.blocks) == 1 else None
        if before is None or (before.name, canonical(before.input)) != this:
            break
        assert isinstance(result, ToolResultBlock)
        if [b for b in result.content if b != TextBlock(HINT)] != list(ended.blocks):
            break
        same += 1
        if same == TIMES:
            return replace(ended, blocks=(*ended.blocks, TextBlock(HINT)))
    return ended
