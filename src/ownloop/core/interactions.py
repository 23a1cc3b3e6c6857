"""Requests to a person, and their answers.

An approval is one kind of request. Answers come from outside: they are checked against the request's own schema,
strictly, before anything is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ownloop.core.messages import Json
from ownloop.core.schema import problems
from ownloop.errors import InvalidRequestError

Purpose: TypeAlias = Literal["approval", "question", "unknown_outcome", "elicitation", "custom"]
Decision: TypeAlias = Literal["approved", "denied", "answered", "expired", "withdrawn"]
Remember: TypeAlias = Literal["once", "session"]
UnknownOutcome: TypeAlias = Literal["ran", "not_run", "again"]

_NOTE: Json = {"type": "string", "maxLength": 10_000}


def answer_schema(purpose: Purpose, value_schema: Json | None = None) -> Json:
    """Return the JSON schema that an answer to a request of this purpose must fit.

    `value_schema` is the edited input's schema of an approval, the value's of a question.
    """
    if purpose == "approval":
        approval: Json = {
            "type": "object",
            "properties": {
                "approved": {"type": "boolean"},
                "edited_input": value_schema or {"type": "object"},
                "note": _NOTE,
                "remember": {"enum": ["once", "session"]},
            },
            "required": ["approved"],
            "additionalProperties": False,
        }
        return _lift_defs(approval)
    if purpose == "unknown_outcome":
        return {
            "type": "object",
            "properties": {
                "outcome": {"enum": ["ran", "not_run", "again"]},
                "result": {"type": "string", "description": "what the tool returned, for the model to read"},
                "note": _NOTE,
            },
            "required": ["outcome"],
            "additionalProperties": False,
        }
    question: Json = {
        "type": "object",
        "properties": {
            "value": value_schema if value_schema is not None else {},
            "declined": {"const": True},
            "note": _NOTE,
        },
        "additionalProperties": False,
        "minProperties": 1,
    }
    return _lift_defs(question)


def _lift_defs(schema: Json) -> Json:
    """Move `$defs` of nested value schemas to the root, where their `#/$defs/…` references look for them."""
    properties: Json = {}
    defs: Json = {}
    for name, inner in schema["properties"].items():
        if isinstance(inner, dict) and "$defs" in inner:
            defs.update(inner["$defs"])  # pyright: ignore[reportUnknownArgumentType]
            inner = {key: value for key, value in inner.items() if key != "$defs"}  # pyright: ignore[reportUnknownVariableType]
        properties[name] = inner
    return {**schema, "properties": properties, **({"$defs": defs} if defs else {})}


@dataclass(frozen=True, slots=True)
class Answer:
    """A checked answer, as the journal will hold it."""

    decision: Literal["approved", "denied", "answered"]
    value: Any = None
    edited_input: Json | None = None
    note: str | None = None
    remember: Remember = "once"


def read_answer(purpose: Purpose, schema: Json, raw: object) -> Answer:
    """Check `raw` against the request's schema and return it as an `Answer`.

    Raises:
        InvalidRequestError: it does not fit; the text lists every problem.
    """
    found = problems(schema, raw)
    if found or not isinstance(raw, dict):
        raise InvalidRequestError(
            f"this answer to {_article(purpose)} does not fit: " + "; ".join(found or ["not an object"])
        )
    answer: Json = raw  # pyright: ignore[reportUnknownVariableType]
    note = answer.get("note")
    if purpose == "approval":
        if not answer["approved"]:
            if "edited_input" in answer:
                raise InvalidRequestError("a refusal cannot carry edited_input: approve with it, or leave it out")
            return Answer("denied", note=note)
        return Answer(
            "approved", edited_input=answer.get("edited_input"), note=note, remember=answer.get("remember", "once")
        )
    if purpose == "unknown_outcome":
        return Answer("answered", value={k: answer[k] for k in ("outcome", "result") if k in answer}, note=note)
    if ("value" in answer) == ("declined" in answer):
        raise InvalidRequestError("answer with either 'value' or 'declined': true")
    if "declined" in answer:
        return Answer("denied", note=note)
    return Answer("answered", value=answer["value"], note=note)


def _article(purpose: Purpose) -> str:
    return f"{'an' if purpose[0] in 'aeu' else 'a'} {purpose} request"
