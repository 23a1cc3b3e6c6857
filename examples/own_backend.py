"""A backend of your own: any program that reads a conversation and writes an answer becomes a model with tools.

    ownloop chat examples/own_backend.py                               # on the rules below: no model at all
    LLM="ollama run qwen3" ownloop chat examples/own_backend.py        # a real model, by the command that runs it

Three methods are all it takes to get the loop, tools, approvals and sessions. A fourth, `load`, gives an instance in
another process what was said before. Say "My name is Ada.", kill the program, go on with --session, ask "Who am I?".
"""

import asyncio
import json
import os
import re
import shlex
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from typing import Any

from ownloop import Agent, AgentTurn, Backend, ToolCall, tool
from ownloop.core.messages import Message, ToolCallBlock, ToolResultBlock, text_of

COMMAND = shlex.split(os.environ.get("LLM", ""))
HOW_TO_CALL = 'To use a tool, answer with nothing but {"tool": NAME, "input": {…}}. The tools are:'


class TextModel(Backend):
    """A model that takes the whole conversation as one text and answers with a text."""

    name = "text-model"

    def __init__(self, system_prompt: str) -> None:
        self.prompt = f"{system_prompt}\n{HOW_TO_CALL}"
        self.lines: list[str] = []

    def load(self, history: Sequence[Message]) -> None:
        for message in history:
            if text := text_of(message.blocks):
                self.lines.append(f"{'User' if message.role == 'user' else 'You'}: {text}")
            for block in message.blocks:
                if isinstance(block, ToolCallBlock):
                    self.lines.append("You: " + json.dumps({"tool": block.name, "input": block.input}))
                elif isinstance(block, ToolResultBlock):
                    self.add_tool_result(block.call_id, block.name, text_of(block.content), block.is_error)

    def add_user_message(self, content: str) -> None:
        self.lines.append(f"User: {content}")

    def add_tool_result(self, tool_call_id: str, name: str, content: str, is_error: bool) -> None:
        self.lines.append(f"{'Error' if is_error else 'Result'} of {name}: {content}")

    async def next_turn(self, tool_schemas: list[dict[str, Any]]) -> AgentTurn:
        text = "\n".join([self.prompt, *map(json.dumps, tool_schemas), *self.lines])
        answer = (await run(text)).strip()
        self.lines.append(f"You: {answer}")
        try:
            wanted = json.loads(answer)
            call = ToolCall(f"call-{len(self.lines)}", wanted["tool"], wanted["input"])
        except (ValueError, TypeError, KeyError):
            return AgentTurn([answer])
        return AgentTurn(tool_calls=[call], stop_reason="tool_use")


async def run(text: str) -> str:
    """Hand the conversation to the program and return what it says. A model of your own goes in here."""
    if not COMMAND:
        return rules(text)
    program = await asyncio.create_subprocess_exec(*COMMAND, stdin=PIPE, stdout=PIPE)
    try:
        answer, _ = await program.communicate(text.encode())
    finally:
        if program.returncode is None:  # the run was cancelled
            program.kill()
            await program.wait()
    if program.returncode:
        raise RuntimeError(f"{COMMAND[0]!r} ended with {program.returncode}")
    return answer.decode()


def rules(text: str) -> str:
    """Answer without a model, so that this example runs anywhere."""
    last = text.splitlines()[-1]
    if last.startswith("Result of"):
        return last.partition(": ")[2]
    if product := re.search(r"(\d+) \* (\d+)", last):
        return json.dumps({"tool": "multiply", "input": {"a": int(product[1]), "b": int(product[2])}})
    names = re.findall(r"^User: My name is (\w+)", text, re.MULTILINE)
    return f"You are {names[-1]}, I believe." if names else "Who are you?"


@tool(read_only=True)
def multiply(a: int, b: int) -> str:
    """Multiply two whole numbers."""
    return f"{a} times {b} is {a * b}."


agent = Agent(
    "own", model=TextModel, instructions="You multiply.", tools=[multiply], suggestions=["What is 6 * 7?", "Who am I?"]
)
