"""An Anthropic message with every kind of block, as one document and as the stream that says the same."""

import json
from collections.abc import Iterator
from typing import Any

from ownloop.core.messages import Json

SEARCH: Json = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tides"}}
FOUND: Json = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {"type": "web_search_result", "url": "https://example.org", "title": "Tides", "encrypted_content": "Eo8"}
    ],
}
CITATION: Json = {"type": "web_search_result_location", "url": "https://example.org", "encrypted_index": "Eo9"}
THOUGHT: Json = {"type": "thinking", "thinking": "I should look it up.", "signature": "EqQBsig=="}
REDACTED: Json = {"type": "redacted_thinking", "data": "EmwKAhgB"}
CITED: Json = {"type": "text", "text": "High water is at noon.", "citations": [CITATION]}
TEXT: Json = {"type": "text", "text": "I check the weather. \n"}
CALL: Json = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Cork", "n": 10**30}}
PING_CALL: Json = {"type": "tool_use", "id": "toolu_2", "name": "get_time", "input": {}}
USAGE: Json = {
    "input_tokens": 12,
    "cache_read_input_tokens": 2_000,
    "cache_creation_input_tokens": 300,
    "output_tokens": 90,
    "output_tokens_details": {"thinking_tokens": 40},
}
MESSAGE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [THOUGHT, REDACTED, SEARCH, FOUND, CITED, TEXT, CALL, PING_CALL],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": USAGE,
}


def event(type: str, **fields: Any) -> bytes:
    return f"event: {type}\ndata: {json.dumps({'type': type, **fields})}\n\n".encode()


def start(index: int, block: Json) -> bytes:
    return event("content_block_start", index=index, content_block=block)


def delta(index: int, type: str, **fields: Any) -> bytes:
    return event("content_block_delta", index=index, delta={"type": type, **fields})


def stop(index: int) -> bytes:
    return event("content_block_stop", index=index)


def begin(**usage: Any) -> bytes:
    return event("message_start", message={"type": "message", "role": "assistant", "content": [], "usage": usage})


def finish(reason: str | None, **usage: Any) -> bytes:
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


END = event("message_stop")


def streamed(message: Json, size: int = 7) -> bytes:
    """Write a message as the API streams it, its texts in pieces of `size` characters."""
    return b"".join(_events(message, size))


def _events(message: Json, size: int) -> Iterator[bytes]:
    usage = message["usage"]
    yield begin(**{**usage, "output_tokens": 1, "output_tokens_details": None})
    for index, block in enumerate(message["content"]):
        match block["type"]:
            case "text":
                yield start(index, {"type": "text", "text": ""})
                for piece in _pieces(block["text"], size):
                    yield delta(index, "text_delta", text=piece)
                for citation in block.get("citations", []):
                    yield delta(index, "citations_delta", citation=citation)
            case "thinking":
                yield start(index, {"type": "thinking", "thinking": "", "signature": ""})
                for piece in _pieces(block["thinking"], size):
                    yield delta(index, "thinking_delta", thinking=piece)
                yield delta(index, "signature_delta", signature=block["signature"])
            case "tool_use" | "server_tool_use":
                yield start(index, block | {"input": {}})
                yield delta(index, "input_json_delta", partial_json="")
                for piece in _pieces(json.dumps(block["input"]) if block["input"] else "", size):
                    yield delta(index, "input_json_delta", partial_json=piece)
            case _:
                yield start(index, block)
        yield event("ping")
        yield stop(index)
    details = usage["output_tokens_details"]
    yield finish(message["stop_reason"], output_tokens=usage["output_tokens"], output_tokens_details=details)
    yield END


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]
