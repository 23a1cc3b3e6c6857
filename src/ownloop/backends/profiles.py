"""What is known about servers, as data: a new server is a row here, never an `if` elsewhere.

Used by the backends. Every field is a documented or observed behaviour of a server; the default is what most take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Profile:
    """How one kind of server differs from the rest."""

    name: str
    call_ids: str = r"\S{1,256}"
    """What a call id must match as a whole (regular expression)."""
    strict_template: bool = False
    """Its chat template wants roles to alternate: neighbours of one role are merged."""
    content_beside_calls: Literal["", None] = ""
    """`content` of an assistant message that only calls. Templates concatenate it, so "" is the safer default; hosts
    in front of Bedrock refuse ""."""
    usage_option: bool = True
    """It knows `stream_options.include_usage`."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    thinking_field: str | None = None
    """The message field in which its own reasoning has to go back beside the calls."""
    think_tags: bool = False
    """Its answers may begin with `<think>…</think>`, which is taken out of the text."""
    attachments: bool = True
    """It reads images and PDF files; otherwise the model is told that there was one."""
    default_max_tokens: int = 4096
    """What the Messages wire, which wants a number, sends where the settings have none. Servers of one's own refuse a
    number that does not fit into their context together with the prompt."""
    cache_control: bool = False
    """It caches the prompts that ask for it (Messages wire)."""
    error_flag: bool = False
    """It tells the model which results are errors; vLLM and llama.cpp drop `is_error`, so the text has to say it."""
    text_behind_results: bool = False
    """A person's text may stand behind results in one message; llama.cpp would put it before them."""
    unsigned_thinking: bool = True
    """It takes its own thinking back without a signature."""
    reasoning_models: str | None = None
    """The models (regular expression) that give their reasoning encrypted if asked to (Responses wire); all others
    there refuse to be asked."""
    plain_reasoning: bool = True
    """It takes its own reasoning back unencrypted (Responses wire)."""
    files_in_results: bool = False
    """A result may hold images and files (Responses wire); many servers take only text there, some silently."""
    says_when_cut: bool = False
    """It says when the output limit cut an answer (Responses wire). llama.cpp calls that completed too; there only the
    count of tokens tells."""
    pooled: bool = False
    """Its idle connections may be used again. llama.cpp promises 5 s and closes them 0.1 ms after a streamed reply, so
    whatever is not known to keep its word gets a fresh connection each time."""


GENERIC: Final = Profile("generic", think_tags=True)
STRICT_TEMPLATE: Final = Profile("strict-template", strict_template=True, think_tags=True)
# Reasoning models refuse max_tokens; every model there takes the newer name. Longer ids are refused.
OPENAI: Final = Profile(
    "openai",
    call_ids=r"[A-Za-z0-9_-]{1,40}",
    content_beside_calls=None,
    max_tokens_field="max_completion_tokens",
    reasoning_models=r"(?!.*-chat)(o[1-9]|gpt-[5-9]).*",
    plain_reasoning=False,
    files_in_results=True,
    says_when_cut=True,
    pooled=True,
)
MISTRAL: Final = Profile("mistral", call_ids=r"[A-Za-z0-9]{9}", strict_template=True, pooled=True)
GEMINI: Final = Profile("gemini-openai", content_beside_calls=None, pooled=True)
DEEPSEEK: Final = Profile("deepseek-thinking", thinking_field="reasoning_content", pooled=True)
OPENROUTER: Final = Profile("openrouter", content_beside_calls=None, pooled=True)
POOLED: Final = Profile("pooled", pooled=True)
# llama.cpp without a projector file answers an image with 500.
LOCAL: Final = Profile("local", think_tags=True, attachments=False)

PROFILES: Final = {
    profile.name: profile
    for profile in (GENERIC, STRICT_TEMPLATE, OPENAI, MISTRAL, GEMINI, DEEPSEEK, OPENROUTER, POOLED, LOCAL)
}


@dataclass(frozen=True, slots=True)
class Host:
    """A public host of this wire."""

    profile: Profile
    key_variable: str
    """The environment variable in which its users keep their key."""


HOSTS: Final = {
    "api.openai.com": Host(OPENAI, "OPENAI_API_KEY"),
    "api.mistral.ai": Host(MISTRAL, "MISTRAL_API_KEY"),
    "generativelanguage.googleapis.com": Host(GEMINI, "GEMINI_API_KEY"),
    "api.deepseek.com": Host(DEEPSEEK, "DEEPSEEK_API_KEY"),
    "openrouter.ai": Host(OPENROUTER, "OPENROUTER_API_KEY"),
    "router.huggingface.co": Host(POOLED, "HF_TOKEN"),
    "api.groq.com": Host(POOLED, "GROQ_API_KEY"),
    "api.together.xyz": Host(POOLED, "TOGETHER_API_KEY"),
}


def profile_for(base_url: str) -> Profile:
    """Return the profile of the server behind a URL; a host that nobody knows is taken for a self-hosted one."""
    host = HOSTS.get(urlsplit(base_url).hostname or "")
    return host.profile if host is not None else GENERIC


# --- the Messages wire ---

MESSAGES: Final = Profile("messages", call_ids=r"[A-Za-z0-9_-]{1,64}")
ANTHROPIC: Final = Profile(
    "anthropic",
    call_ids=r"[A-Za-z0-9_-]{1,64}",
    # All its models take so many; thinking counts too, so less would cut long turns.
    default_max_tokens=32_000,
    cache_control=True,
    error_flag=True,
    text_behind_results=True,
    unsigned_thinking=False,
    pooled=True,
)


def messages_profile_for(base_url: str) -> Profile:
    """Return the profile of the Messages server behind a URL."""
    return ANTHROPIC if urlsplit(base_url).hostname == "api.anthropic.com" else MESSAGES
