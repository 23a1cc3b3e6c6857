"""The public shapes of the provider contract."""

from dataclasses import asdict, fields

import pytest

from ownloop.core import backend, provider
from ownloop.core.provider import ContentBlock, ModelResponse, ProviderMessage, StreamEvent, ToolCall, ToolSchema


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        (ToolSchema, ["name", "description", "input_schema"]),
        (ToolCall, ["id", "name", "input"]),
        (ContentBlock, ["type", "text", "tool_call"]),
        (ModelResponse, ["content", "stop_reason", "usage"]),
        (StreamEvent, ["type", "index", "block_type", "delta_type", "text", "tool_name", "tool_id", "usage"]),
        (ProviderMessage, ["role", "content"]),
    ],
)
def test_a_shape_begins_with_the_fields_of_the_contract_in_their_order(shape: type, names: list[str]):
    assert [f.name for f in fields(shape)][: len(names)] == names


def test_a_tool_call_of_a_provider_is_the_one_of_a_backend():
    assert provider.ToolCall is backend.ToolCall


def test_an_event_needs_only_what_its_type_uses():
    event = StreamEvent("usage", usage={"input_tokens": 3})
    assert asdict(event) == {
        "type": "usage",
        "index": 0,
        "block_type": "",
        "delta_type": "",
        "text": "",
        "tool_name": "",
        "tool_id": "",
        "usage": {"input_tokens": 3},
        "raw": None,
        "problem": None,
        "stop_reason": None,
    }


def test_events_do_not_share_their_usage():
    assert StreamEvent("usage").usage is not StreamEvent("usage").usage


def test_all_names_are_there():
    assert [name for name in provider.__all__ if not hasattr(provider, name)] == []
    assert provider.__all__ == sorted(provider.__all__)
