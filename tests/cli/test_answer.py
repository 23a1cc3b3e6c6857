from __future__ import annotations

import pytest

from ownloop.cli.sessions import _answer, _request
from ownloop.core.interactions import Purpose, answer_schema, read_answer
from ownloop.core.messages import Json
from ownloop.core.operations import Asked
from ownloop.core.ports import SessionInfo
from ownloop.errors import ConfigError, InvalidRequestError

SESSION = SessionInfo("sess_1", "support", "", "local")


def asked(purpose: Purpose, value_schema: Json | None = None, request_id: str = "req_1") -> Asked:
    data = {"tool": "refund", "input": {"order": request_id}} if purpose == "approval" else {"question": "Sea?"}
    return Asked("sess_1", request_id, "run_1", purpose, data, answer_schema(purpose, value_schema))


@pytest.mark.parametrize(
    ("purpose", "value_schema", "words", "answer"),
    [
        ("approval", None, "approve", {"approved": True}),
        ("approval", None, "deny", {"approved": False}),
        ("approval", None, '{"approved": true, "remember": "session"}', {"approved": True, "remember": "session"}),
        ("unknown_outcome", None, "ran", {"outcome": "ran"}),
        ("unknown_outcome", None, "not_run", {"outcome": "not_run"}),
        ("unknown_outcome", None, '{"outcome": "ran", "result": "5"}', {"outcome": "ran", "result": "5"}),
        ("question", {"type": "string"}, "sea", {"value": "sea"}),
        ("question", {"type": "string"}, "5", {"value": "5"}),
        ("question", {"type": "integer"}, "5", {"value": 5}),
        ("question", None, "sea", {"value": "sea"}),
        ("custom", None, '{"room": 5}', {"value": {"room": 5}}),
        ("custom", None, '{"value": {"room": 5}, "note": "!"}', {"value": {"room": 5}, "note": "!"}),
        ("question", None, "decline", {"declined": True}),
    ],
)
def test_words_become_answers_in_the_form_of_the_contract(
    purpose: Purpose, value_schema: Json | None, words: str, answer: Json
) -> None:
    request = asked(purpose, value_schema)
    assert _answer(request, words) == answer
    read_answer(purpose, request.schema, answer)  # the service takes it


@pytest.mark.parametrize("words", ["yes, please", "true", "[]", '"approve"'])
def test_what_is_no_answer_is_refused(words: str) -> None:
    with pytest.raises(InvalidRequestError, match="answer approve, deny, or in full, as JSON"):
        _answer(asked("approval"), words)


def test_the_only_request_needs_no_name_and_of_several_one_is_named() -> None:
    one, other = asked("approval"), asked("approval", request_id="req_2")
    assert _request(SESSION, [one], None) is one
    assert _request(SESSION, [one, other], "req_2") is other
    with pytest.raises(ConfigError, match="nothing waits for an answer"):
        _request(SESSION, [], None)
    with pytest.raises(ConfigError) as several:
        _request(SESSION, [one, other], None)
    assert str(several.value) == (
        "2 requests wait in session 'sess_1'; name one:\n"
        '  --request req_1   refund {"order": "req_1"}\n'
        '  --request req_2   refund {"order": "req_2"}'
    )
    with pytest.raises(ConfigError, match="no request 'req_3' waits"):
        _request(SESSION, [one], "req_3")
