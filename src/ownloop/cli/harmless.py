"""Text of models, tools and files as a terminal may show it: controls are made visible, never obeyed. Pure.

Character by character, so that a sequence that is split over deltas is as harmless as a whole one.
"""

from __future__ import annotations

import re

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""C0 and C1 controls but tab and line feed, and what turns text around or breaks lines."""
_UNSEEN = re.compile(
    r"[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200d\u2060-\u2064\u206a-\u206f\u3164\ufeff"
    r"\U000e0000-\U000e0fff]"
)
"""What shows nothing. It is fine in a sentence, where emoji are joined by it, and not in what a person approves."""


def harmless(text: str) -> str:
    """Return `text` with every character that a terminal would obey made visible."""
    return _OBEYED.sub(lambda match: _visible(match[0]), text.replace("\r\n", "\n"))


def revealed(text: str) -> str:
    """Return `text` with everything visible that is in it: for what a person is asked to approve."""
    return _UNSEEN.sub(lambda match: _visible(match[0]), harmless(text))


def _visible(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"<{code:04x}>"


def harmless_json(text: str) -> str:
    """Return JSON text that means the same, with what a terminal would obey written as `\\uXXXX`."""
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
