from __future__ import annotations

import socket

import pytest

from ownloop.core.messages import Json
from ownloop.core.schema import problems


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"$ref": "#/$defs/A"}, "the schema refers to '/$defs/A', which is not in it"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, "the schema refers to itself without end"),
    ],
)
def test_a_schema_that_cannot_be_followed_fits_nothing(schema: Json, problem: str) -> None:
    assert problems(schema, 1) == [problem]


def test_a_schema_that_refers_to_an_address_is_not_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema"
        assert problems({"$ref": url}, 1) == [f"the schema refers to {url!r}, which is not in it"]
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_schema_may_refer_to_its_own_language() -> None:
    assert problems({"$ref": "https://json-schema.org/draft/2020-12/schema"}, {"type": "string"}) == []
    assert problems({"$ref": "https://json-schema.org/draft/2020-12/schema"}, {"type": 7}) != []
