"""What a response cost: the provider's own counts beside one normalised view.

Inside a response a field is *replaced* by its last non-null value; sums are made only across responses. A count that
nobody gave is unknown (None), not zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ownloop.core.messages import Json


@dataclass(frozen=True, slots=True)
class Usage:
    """Disjoint buckets of tokens: `input + cache_read + cache_write` were read, `output` was written."""

    input: int | None = None
    """Read fresh, at full price."""
    cache_read: int | None = None
    cache_write: int | None = None
    output: int | None = None
    reasoning: int | None = None
    """The part of `output` spent on reasoning."""
    raw: Json = field(default_factory=dict[str, object])
    """The provider's fields, last non-null value each; empty in sums."""

    def __add__(self, other: Usage) -> Usage:
        def plus(a: int | None, b: int | None) -> int | None:
            return b if a is None else a if b is None else a + b

        return Usage(
            plus(self.input, other.input),
            plus(self.cache_read, other.cache_read),
            plus(self.cache_write, other.cache_write),
            plus(self.output, other.output),
            plus(self.reasoning, other.reasoning),
        )

    @property
    def total(self) -> int:
        """All tokens read and written, as far as known: what a token budget counts."""
        return (self.input or 0) + (self.cache_read or 0) + (self.cache_write or 0) + (self.output or 0)


def merge_counts(known: Json, news: Mapping[str, object]) -> Json:
    """Replace field by field; a null never erases a count, and nested details merge in the same way."""
    merged = dict(known)
    for key, value in news.items():
        if isinstance(value, Mapping):
            before = merged.get(key)
            merged[key] = merge_counts(before if isinstance(before, dict) else {}, value)  # pyright: ignore[reportUnknownArgumentType]
        elif value is not None:
            merged[key] = value
    return merged
