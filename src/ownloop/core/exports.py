"""An exported session: its journal as one JSON document, and back. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ownloop.core.codec import dump_body, dumps, load_body, loads
from ownloop.core.events import Fact
from ownloop.core.messages import Json
from ownloop.core.schema import problems
from ownloop.errors import IllegalFactError, InvalidRequestError, StoreNewerError

FORMAT = "ownloop.session"
VERSION = 1
_SCHEMA: Json = {
    "type": "object",
    "required": ["format", "version", "facts"],
    "properties": {
        "format": {"const": FORMAT},
        "version": {"const": VERSION},
        "title": {"type": ["string", "null"]},
        "facts": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["seq", "at_ms", "epoch", "kind", "v", "body"],
                "properties": {
                    "seq": {"type": "integer"},
                    "at_ms": {"type": "integer"},
                    "epoch": {"type": "integer", "minimum": 0},
                    "run_id": {"type": ["string", "null"]},
                    "kind": {"type": "string"},
                    "v": {"type": "integer", "minimum": 1},
                    "body": {"type": "object"},
                },
                "additionalProperties": False,
            },
        },
        "blobs": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["media_type", "base64"],
                "properties": {"media_type": {"type": "string"}, "base64": {"type": "string"}},
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}


def dump_export(title: str | None, facts: Sequence[Fact], blobs: Mapping[str, tuple[str, bytes]]) -> Json:
    """Return the document; `blobs` maps digests to media type and bytes."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": title,
        "facts": [
            {
                "seq": fact.seq,
                "at_ms": fact.at_ms,
                "epoch": fact.epoch,
                "run_id": fact.run_id,
                "kind": fact.body.kind,
                "v": fact.body.v,
                "body": loads(dump_body(fact.body)),
            }
            for fact in facts
        ],
        "blobs": {
            name: {"media_type": media_type, "base64": base64.b64encode(body).decode()}
            for name, (media_type, body) in blobs.items()
        },
    }


def load_export(document: Any) -> tuple[str | None, list[Fact], dict[str, tuple[str, bytes]]]:
    """Read a document: title, facts, blobs.

    Raises:
        InvalidRequestError: it is no exported session, or of a newer release; the text says where it does not fit.
    """
    found = problems(_SCHEMA, document)
    if found:
        raise InvalidRequestError("this is no exported session: " + "; ".join(found))
    try:
        facts = [
            Fact(
                row["seq"],
                row["at_ms"],
                row["epoch"],
                row.get("run_id"),
                load_body(row["kind"], row["v"], dumps(row["body"])),
            )
            for row in document["facts"]
        ]
    except (IllegalFactError, StoreNewerError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"this exported session cannot be read: {error}") from error
    blobs: dict[str, tuple[str, bytes]] = {}
    for name, blob in document.get("blobs", {}).items():
        try:
            body = base64.b64decode(blob["base64"], validate=True)
        except ValueError as error:
            raise InvalidRequestError(f"blob {name!r} of this exported session is not base64") from error
        if hashlib.sha256(body).hexdigest() != name:
            raise InvalidRequestError(f"blob {name!r} of this exported session does not have that digest")
        blobs[name] = (blob["media_type"], body)
    return document.get("title"), facts, blobs
