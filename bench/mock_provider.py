"""A model on loopback that is never the bottleneck: OpenAI chat completions over SSE. `python -m bench.mock_provider`.

Prints its port. The model's name says what it answers:

    text-N      N text deltas in one burst
    tools-K-N   a call of add(a, b) on each of the first K turns, then N text deltas
    paced-N-R   N text deltas at R per second, one write each

A delta is "T", 15 digits and a space. In a burst they count from 1; paced, they are CLOCK_MONOTONIC in nanoseconds at
the moment of sending, so that a consumer on the same machine can tell how late it got them.
"""

import asyncio
import json
import re
import time
from functools import lru_cache
from typing import Any

MODEL = re.compile(rb'"model"\s*:\s*"([^"]+)"')
RESULT = re.compile(rb'"role"\s*:\s*"tool"')
LENGTH = re.compile(rb"content-length:\s*(\d+)", re.I)
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\nx-request-id: req_1\r\ntransfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"
FILLER = "T" + "0" * 15 + " "


def mark(number: int) -> str:
    return f"T{number:015d} "


def framed(text: str) -> bytes:
    """Return an SSE event as one chunk of the body."""
    data = f"data: {text}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(model: str, delta: dict[str, Any], finish: str | None = None, **extra: Any) -> bytes:
    # All the fields that the real service sends: a decoder pays for those it skips, too.
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1790000000,
        "model": model,
        "service_tier": "default",
        "system_fingerprint": "fp_1",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
        "usage": None,
    }
    return framed(json.dumps(body | extra, separators=(",", ":")))


def opening(model: str) -> bytes:
    return HEAD + event(model, {"role": "assistant", "content": ""})


def closing(model: str, finish: str = "stop", tokens: int = 1) -> bytes:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": tokens,
        "total_tokens": 10 + tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    return event(model, {}, finish) + event(model, {}, choices=[], usage=usage) + framed("[DONE]") + END


@lru_cache(256)
def burst(model: str, count: int) -> bytes:
    deltas = b"".join(event(model, {"content": mark(number)}) for number in range(1, count + 1))
    return opening(model) + deltas + closing(model, tokens=count)


@lru_cache(1024)
def call(model: str, turn: int) -> bytes:
    function = {"name": "add", "arguments": ""}
    first = {"index": 0, "id": f"call_{turn}", "type": "function", "function": function}
    out = HEAD + event(model, {"role": "assistant", "content": None, "tool_calls": [first]})
    for part in ('{"a":', f" {turn}", ', "b"', ": 1}"):
        out += event(model, {"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
    return out + closing(model, "tool_calls")


class Stream:
    """A paced answer: what stands around the mark is made once."""

    def __init__(self, transport: asyncio.WriteTransport, model: str, left: int) -> None:
        self.transport = transport
        self.before, self.after = event(model, {"content": FILLER}).split(FILLER.encode())
        self.tail = closing(model)
        self.left = left

    def send(self, now: bytes) -> bool:
        """Send one delta; False when it was the last."""
        if self.transport.is_closing():
            return False
        self.left -= 1
        data = self.before + now + self.after
        self.transport.write(data if self.left else data + self.tail)
        return self.left > 0


class Wheel:
    """All paced streams of one rate: slots of a millisecond, each stream in one slot of the period."""

    def __init__(self, rate: int) -> None:
        self.slots: list[list[Stream]] = [[] for _ in range(max(1, round(1000 / rate)))]
        self.next_slot = 0
        self.tick = 0
        self.turns = False

    def add(self, stream: Stream) -> None:
        self.slots[self.next_slot].append(stream)
        self.next_slot = (self.next_slot + 7) % len(self.slots)
        if not self.turns:
            self.tick = int(time.monotonic() * 1000)
            self.turn()

    def turn(self) -> None:
        now = int(time.monotonic() * 1000)
        for tick in range(self.tick + 1, now + 1):
            slot = self.slots[tick % len(self.slots)]
            if slot:
                at = mark(time.monotonic_ns()).encode()
                slot[:] = [stream for stream in slot if stream.send(at)]
        self.tick = now
        self.turns = any(self.slots)
        if self.turns:
            asyncio.get_running_loop().call_later(0.001, self.turn)


class Provider(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self, wheels: dict[int, Wheel]) -> None:
        self.buffer = b""
        self.wheels = wheels

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (head := self.buffer.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self.buffer, 0, head)
            end = head + 4 + (int(length[1]) if length else 0)
            if len(self.buffer) < end:
                return
            body, self.buffer = self.buffer[head + 4 : end], self.buffer[end:]
            self.answer(body)

    def answer(self, body: bytes) -> None:
        named = MODEL.search(body)
        kind, *numbers = named[1].decode().split("-") if named else ("",)
        match kind, [int(number) for number in numbers]:
            case "text", [count]:
                self.transport.write(burst(f"text-{count}", count))
            case "tools", [calls, count]:
                done = len(RESULT.findall(body))
                model = f"tools-{calls}-{count}"
                self.transport.write(call(model, done + 1) if done < calls else burst(model, count))
            case "paced", [count, rate]:
                model = f"paced-{count}-{rate}"
                self.transport.write(opening(model))
                if rate not in self.wheels:
                    self.wheels[rate] = Wheel(rate)
                self.wheels[rate].add(Stream(self.transport, model, count))
            case _:
                self.transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")


async def main() -> None:
    wheels: dict[int, Wheel] = {}
    server = await asyncio.get_running_loop().create_server(lambda: Provider(wheels), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
