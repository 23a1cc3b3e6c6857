"""`Image`: what a tool returns to show a picture to the model. For users, and for `rendering`.

Its one invariant: an image has a media type. It travels as an image where the provider takes one, never as base64 text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def image_type(data: bytes) -> str | None:
    """Return the media type that the first bytes tell, None if they are no image every provider knows."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for magic, media_type in _MAGIC if data.startswith(magic)), None)


@dataclass(frozen=True, slots=True, init=False)
class Image:
    """A picture as a tool's result, or a part of one: `return Image(data)`, `return ["before", Image(path="a.png")]`.

    Raises:
        ValueError: not exactly one of `data` and `path`; or no `media_type`, and the bytes do not tell it.
        OSError: the file cannot be read. It is read here, in the tool's own thread or task.
    """

    data: bytes = field(repr=False)
    media_type: str

    def __init__(
        self, data: bytes | None = None, *, path: str | Path | None = None, media_type: str | None = None
    ) -> None:
        if (data is None) == (path is None):
            raise ValueError("Image takes either data or path")
        content = Path(path).read_bytes() if path is not None else bytes(data or b"")
        known = media_type or image_type(content)
        if known is None:
            raise ValueError("Image: the bytes are no PNG, JPEG, GIF or WebP; pass media_type= if they are an image")
        object.__setattr__(self, "data", content)
        object.__setattr__(self, "media_type", known)
