"""What a model's string may look like, as data: a new form is a row here, read by `models.py` and by `ownloop models`.

Imports nothing of a vendor's; nothing here connects to anybody.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ModelForm:
    """One way to name a model."""

    scheme: str
    """What stands before the first colon."""
    example: str
    """The whole string, with NAME, HOST and PORT where a person's own words go."""
    what: str
    """What it is, in a few words."""
    extra: str
    """The extra of the package that brings its SDK: `pip install 'ownloop[extra]'`."""
    modules: tuple[str, ...]
    """What the extra must have brought, by names of import."""
    key_variable: str | None = None
    """The environment variable with its key. None: it needs none, or its host decides (`models.key_variable`)."""
    url_variable: str | None = None
    """The environment variable that may name another base URL."""

    @property
    def missing(self) -> tuple[str, ...]:
        """The modules that are not installed here. Imports none of them."""
        return tuple(name for name in self.modules if importlib.util.find_spec(name) is None)


_OPENAI: Final = ("openai", "aiohttp")

FORMS: Final = (
    ModelForm("local", "local", "a tiny model on this machine, fetched once; no key", "local", ("xllamacpp", *_OPENAI)),
    ModelForm("local", "local:/path/model.gguf", "any GGUF file on this machine", "local", ("xllamacpp", *_OPENAI)),
    ModelForm(
        "anthropic",
        "anthropic:NAME",
        "Claude",
        "anthropic",
        ("anthropic", "aiohttp"),
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_BASE_URL",
    ),
    ModelForm("openai", "openai:NAME", "OpenAI", "openai", _OPENAI, "OPENAI_API_KEY", "OPENAI_BASE_URL"),
    ModelForm(
        "openai-responses",
        "openai-responses:NAME",
        "OpenAI, by its Responses API",
        "openai",
        _OPENAI,
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
    ),
    ModelForm("hf", "hf:NAME", "open models, hosted by Hugging Face", "huggingface", ("huggingface_hub",), "HF_TOKEN"),
    ModelForm(
        "http",
        "http://HOST:PORT/v1#NAME",
        "any OpenAI-compatible server: vLLM, SGLang, llama.cpp, Ollama, LM Studio",
        "openai",
        _OPENAI,
    ),
    ModelForm(
        "https", "https://HOST/v1#NAME", "the same, hosted, as https://openrouter.ai/api/v1#NAME", "openai", _OPENAI
    ),
)


@dataclass(frozen=True, slots=True)
class UsualServer:
    """A server that people run themselves."""

    name: str
    title: str
    base_url: str
    """Where it listens if nobody says otherwise."""


USUAL_SERVERS: Final = (
    UsualServer("ollama", "Ollama", "http://localhost:11434/v1"),
    UsualServer("vllm", "vLLM", "http://localhost:8000/v1"),
    UsualServer("sglang", "SGLang", "http://localhost:30000/v1"),
    UsualServer("lmstudio", "LM Studio", "http://localhost:1234/v1"),
    UsualServer("llamacpp", "llama.cpp", "http://localhost:8080/v1"),
)


def forms_as_text() -> str:
    """Return the forms as an indented table, for an error that teaches."""
    width = max(len(form.example) for form in FORMS)
    return "\n".join(f"  {form.example:{width}}  {_described(form)}" for form in FORMS)


def _described(form: ModelForm) -> str:
    return form.what + (f"; the key in {form.key_variable}" if form.key_variable else "")
