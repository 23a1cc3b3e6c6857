"""Run the wire cases: what a provider sent or wants to be sent, told as JSON (tests/cases/README.md).

For tests, ours and those of a new backend: a backend's pure half passes when every case of its wire has no problems,
however its bytes are cut. A wire is one row in `WIRES`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from ownloop.backends.profiles import ANTHROPIC, GENERIC, PROFILES, Profile
from ownloop.backends.wires.chat_decoder import ChatDecoder
from ownloop.backends.wires.chat_encoder import ChatEncoder
from ownloop.backends.wires.decoder import Decoder
from ownloop.backends.wires.encoder import Encoder
from ownloop.backends.wires.messages_decoder import MessagesDecoder
from ownloop.backends.wires.messages_encoder import MessagesEncoder
from ownloop.backends.wires.provider_errors import provider_error
from ownloop.backends.wires.responses_decoder import ResponsesDecoder
from ownloop.backends.wires.responses_encoder import ResponsesEncoder
from ownloop.core.backend import ModelRequest, ModelSettings, Part
from ownloop.core.events import ErrorInfo, ResponseEnded
from ownloop.core.messages import (
    BlobBlock,
    Json,
    Message,
    ResultContent,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    as_blocks,
    calls_of,
    text_of,
)
from ownloop.core.schema import problems
from ownloop.core.toolspec import ToolSpec
from ownloop.core.turn import TurnBuilder
from ownloop.core.usage import Usage
from ownloop.errors import ProviderError, StreamInterruptedError
from ownloop.testing.wire_requests import problems_of_request

PROVIDER: Final = "case"


@dataclass(frozen=True, slots=True)
class WireCase:
    """One case, as its file tells it."""

    name: str
    raw: Json

    @property
    def kind(self) -> str:
        """`response`, `request` or `roundtrip`."""
        return self.raw["kind"]

    @property
    def wire(self) -> str:
        return self.raw["provider_api"]

    @property
    def model(self) -> str:
        return WIRES[self.wire].model

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return tuple(ToolSpec(t["name"], t["description"], t["input_schema"]) for t in self.raw["tools"])

    @property
    def profile(self) -> Profile:
        return PROFILES[self.raw["profile"]] if "profile" in self.raw else GENERIC

    @property
    def chunks(self) -> list[bytes]:
        """What the server writes, one item per network write."""
        return [_expand(chunk) for chunk in self.raw["response"]["chunks"]]

    @property
    def is_reset(self) -> bool:
        """Whether the server resets the connection after the last write, instead of closing it."""
        return self.raw["response"]["then"] == "reset"


def load_cases(folder: Path) -> list[WireCase]:
    """Read every `*.json` of a folder, in the order of their names."""
    return [WireCase(path.stem, json.loads(path.read_text("utf-8"))) for path in sorted(folder.glob("*.json"))]


def _expand(chunk: Any) -> bytes:
    if isinstance(chunk, str):
        return chunk.encode()
    if "b64" in chunk:
        return base64.b64decode(chunk["b64"])
    return (chunk["repeat"]["text"] * chunk["repeat"]["times"]).encode()


# --- wires: bytes in, parts out; a request in, its body out -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decoded:
    """The parts of one response, in batches, and why it is not complete."""

    batches: Sequence[Sequence[Part]]
    error: ProviderError | None


@dataclass(frozen=True, slots=True)
class Wire:
    """The pure half of the backends of one provider API."""

    model: str
    """The one that the streams of the cases name."""
    encoder: Callable[[WireCase], Encoder]
    decoder: Callable[[WireCase, Mapping[str, str]], Decoder]
    """A fresh one; the mapping is `Encoded.names`."""
    counts: Callable[[Usage], Mapping[str, int | None]]
    """The provider's own counts under the names of the cases."""


def _chat_counts(usage: Usage) -> Mapping[str, int | None]:
    return {
        "input_tokens": usage.raw.get("prompt_tokens"),
        "output_tokens": usage.raw.get("completion_tokens"),
        "cache_read_input_tokens": usage.cache_read,
    }


def _responses_counts(usage: Usage) -> Mapping[str, int | None]:
    return {
        "input_tokens": usage.raw.get("input_tokens"),
        "output_tokens": usage.raw.get("output_tokens"),
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write,
    }


WIRES: Final[Mapping[str, Wire]] = {
    "openai-chat": Wire(
        "m",
        lambda case: ChatEncoder(PROVIDER, case.model, case.profile),
        lambda case, names: ChatDecoder(names, provider=PROVIDER, think_tags=case.profile.think_tags),
        _chat_counts,
    ),
    "anthropic-messages": Wire(
        "claude-x",
        lambda case: MessagesEncoder(PROVIDER, case.model, ANTHROPIC),
        lambda _, names: MessagesDecoder(names, provider=PROVIDER),
        lambda usage: usage.raw,
    ),
    "openai-responses": Wire(
        "gpt-5",
        lambda case: ResponsesEncoder(PROVIDER, case.model, case.profile),
        lambda case, names: ResponsesDecoder(names, provider=PROVIDER, think_tags=case.profile.think_tags),
        _responses_counts,
    ),
}


def decode_parts(case: WireCase, slices: Iterable[bytes]) -> Decoded:
    """Decode the body of a case that has status 200, cut into `slices`."""
    wire = WIRES[case.wire]
    names = wire.encoder(case).encode(ModelRequest("", (), case.tools, ModelSettings())).names
    decoder = wire.decoder(case, names)
    batches = [decoder.feed(data) for data in slices if not decoder.done]
    if case.is_reset:
        decoder.lose(StreamInterruptedError("the connection was reset"))
    batches.append(decoder.close())
    return Decoded(batches, decoder.error)


# --- responses --------------------------------------------------------------------------------------------------------


def decode_case(case: WireCase, slices: Iterable[bytes] | None = None) -> ResponseEnded:
    """Decode the reply of a case, cut into `slices` (as the case says if None), to the fact that ends the response."""
    response = case.raw["response"]
    builder = TurnBuilder(1, _counter("call"))
    if response["status"] >= 400:
        body = b"".join(case.chunks).decode()
        error = provider_error(PROVIDER, body, status=response["status"], headers=response["headers"])
        decoded = Decoded((), error)
    else:
        decoded = decode_parts(case, case.chunks if slices is None else slices)
    for batch in decoded.batches:
        builder.feed(batch)
    if decoded.error is None:
        return builder.end(1)[1]
    return builder.end(1, "failed", ErrorInfo(decoded.error.code, decoded.error.message))[1]


def problems_of_response(case: WireCase, fact: ResponseEnded) -> list[str]:
    """Return in what the decoded response differs from what the case expects; empty if in nothing."""
    expect = dict(case.raw["expect"])
    choices = expect.pop("any_of", None)
    found = _differences(case, fact, expect)
    if choices is not None:
        each = [_differences(case, fact, choice) for choice in choices]
        if all(each):
            found.append(f"none of the allowed outcomes holds: {each!r}")
    return found


def _differences(case: WireCase, fact: ResponseEnded, expect: Mapping[str, Any]) -> list[str]:
    failed = fact.status == "failed"
    sound = {id(call): not _is_refused(case, call) for call in calls_of(fact.blocks)}
    run = [call for call in calls_of(fact.blocks) if sound[id(call)] and not failed]
    refused = [call for call in calls_of(fact.blocks) if not sound[id(call)] and not failed]
    if fact.error is not None:
        error = fact.error.code
    else:
        error = "invalid_tool_input" if refused else None
    seen: dict[str, Any] = {
        "text": text_of(fact.blocks),
        "thinking": "".join(block.text for block in fact.blocks if isinstance(block, ThinkingBlock)),
        "stop_reason": fact.stop_reason,
        "error": error,
    }
    found: list[str] = []
    for key, wanted in expect.items():
        match key:
            case "tool_calls":
                found += _call_differences(run, wanted, any_order=bool(case.raw.get("tool_calls_any_order")))
            case "invalid_tool_calls":
                found += _call_differences(refused, wanted, any_order=False)
            case "usage":
                counts = WIRES[case.wire].counts(fact.usage or Usage())
                found += [
                    f"usage {name}: {counts.get(name)!r} instead of {count!r}"
                    for name, count in wanted.items()
                    if counts.get(name) != count
                ]
            case "ids_unique":
                ids = [call.call_id for call in calls_of(fact.blocks)]
                found += [] if len(set(ids)) == len(ids) else [f"call ids repeat: {ids!r}"]
            case _:
                if not _equal(seen[key], wanted, strip=key == "text" and case.raw.get("text_compare") == "strip"):
                    found.append(f"{key}: {seen[key]!r:.200} instead of {wanted!r:.200}")
    return found


def _is_refused(case: WireCase, call: ToolCallBlock) -> bool:
    """Whether the executor would answer this call with an error instead of running it."""
    if call.problem is not None:
        return True
    spec = next((tool for tool in case.tools if tool.name == call.name), None)
    return spec is None or bool(problems(spec.input_schema, call.input))


def _call_differences(calls: Sequence[ToolCallBlock], wanted: Sequence[Json], *, any_order: bool) -> list[str]:
    if len(calls) != len(wanted):
        return [f"{len(calls)} calls instead of {len(wanted)}: {[(c.name, c.input, c.problem) for c in calls]!r}"]
    if any_order:
        calls = sorted(calls, key=lambda call: call.provider_id or "")
        wanted = sorted(wanted, key=lambda call: call["id"])
    found: list[str] = []
    for call, want in zip(calls, wanted, strict=True):
        if call.name != want["name"] or ("input" in want and call.input != want["input"]):
            found.append(f"call {call.name} {call.input!r} instead of {want!r}")
        if want["id"] != "*" and call.provider_id != want["id"]:
            found.append(f"call id {call.provider_id!r} instead of {want['id']!r}")
        if not call.call_id:
            found.append(f"call {call.name} has no id")
    return found


def _equal(seen: Any, wanted: Any, *, strip: bool) -> bool:
    if isinstance(wanted, list):
        return seen in cast("list[Any]", wanted)
    if isinstance(wanted, dict):
        wanted = _expand(cast("Json", wanted)).decode()
    return seen.strip() == wanted.strip() if strip else seen == wanted


# --- requests ---------------------------------------------------------------------------------------------------------


def encode_case(case: WireCase, fact: ResponseEnded | None = None) -> Json:
    """Return the body that would be sent for the history of a case.

    With `fact`, the decoded response of a roundtrip, its message and the case's tool results follow the history.
    """
    history, blobs = _history(case)
    if fact is not None:
        history.append(Message("assistant", fact.blocks, provider=PROVIDER, model=case.model))
        results = zip(calls_of(fact.blocks), case.raw["tool_results"], strict=True)
        history.append(
            Message(
                "tool",
                tuple(
                    ToolResultBlock(
                        call.call_id, call.name, as_blocks(result["content"]), result.get("is_error", False)
                    )
                    for call, result in results
                ),
            )
        )
    request = ModelRequest(case.raw.get("system", ""), history, case.tools, ModelSettings(), blobs=blobs)
    return WIRES[case.wire].encoder(case).encode(request).body


def check_case(case: WireCase, slices: Iterable[bytes] | None = None) -> list[str]:
    """Run one case of any kind; return its problems."""
    if case.kind == "request":
        return problems_of_request(encode_case(case), case.raw["expect_request"])
    fact = decode_case(case, slices)
    found = problems_of_response(case, fact)
    if case.kind == "roundtrip" and not found:
        found += problems_of_request(encode_case(case, fact), case.raw["expect_request"])
    return found


def _history(case: WireCase) -> tuple[list[Message], dict[str, bytes]]:
    """Read `request_history`; without one, the conversation begins with a user's word."""
    blobs: dict[str, bytes] = {}
    mint = _counter("own")
    ours: dict[str, str] = {}
    out: list[Message] = []
    for entry in case.raw.get("request_history", [{"role": "user", "text": "Go on."}]):
        match entry["role"]:
            case "user" | "system":  # our history has no system entry: what it would say is a note to the model
                out.append(Message("user", (TextBlock(entry["text"]),)))
            case "assistant":
                blocks: list[TextBlock | ToolCallBlock] = []
                for block in entry["blocks"]:
                    if block["type"] == "text":
                        blocks.append(TextBlock(block["text"]))
                    else:
                        ours[block["id"]] = mint()
                        blocks.append(ToolCallBlock(ours[block["id"]], block["name"], block["input"], block["id"]))
                out.append(Message("assistant", tuple(blocks), provider=PROVIDER, model=case.model))
            case _:
                content = _content(entry["content"], blobs)
                result = ToolResultBlock(ours[entry["id"]], entry["name"], content, entry["is_error"])
                if out and out[-1].role == "tool":
                    out[-1] = replace(out[-1], blocks=(*out[-1].blocks, result))
                else:
                    out.append(Message("tool", (result,)))
    return out, blobs


def _content(content: Any, blobs: dict[str, bytes]) -> tuple[ResultContent, ...]:
    if isinstance(content, str):
        return as_blocks(content)
    out: list[ResultContent] = []
    for block in content:
        if block["type"] == "text":
            out.append(TextBlock(block["text"]))
        else:
            body = base64.b64decode(block["data"])
            digest = hashlib.sha256(body).hexdigest()
            blobs[digest] = body
            out.append(BlobBlock(digest, block["media_type"], len(body)))
    return tuple(out)


def _counter(prefix: str) -> Callable[[], str]:
    numbers = iter(range(1, 1_000_000))
    return lambda: f"{prefix}_{next(numbers)}"
