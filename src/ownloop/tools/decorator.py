"""`@tool`: a Python function becomes something a model may call. For users; `executor` runs what is defined here.

Its one invariant: a `Tool` that exists can be offered and called. What cannot is refused at its definition, by name.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import FrameType, MethodType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, get_args, overload

from ownloop.core.messages import Json
from ownloop.core.policy import ApprovalPredicate, is_approval
from ownloop.core.text import clean_text
from ownloop.core.toolspec import Approval, OnUnknown, ToolSpec
from ownloop.errors import ToolDefinitionError

if TYPE_CHECKING:
    from ownloop.tools.arguments import Parameters

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What every provider takes as a tool's name."""


class ToolRetry(Exception):
    """Raise it in a tool to tell the model, word for word, how to call it better."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tool(Generic[P, R]):
    """A function that a model may call. Still callable as the function it was."""

    spec: ToolSpec
    fn: Callable[P, R]
    parameters: Parameters
    contexts: tuple[str, ...]
    """The parameters that are given the ToolContext."""
    is_async: bool
    predicate: ApprovalPredicate | None = None
    """`approval` where it is code."""
    is_method: bool = False
    """Defined in a class body, and not yet reached through an instance."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool[..., R]:
        """Bind a tool that was defined in a class body, as Python binds a method."""
        if instance is None or not self.is_method:
            return self
        return replace(self, fn=MethodType(self.fn, instance), is_method=False)

    def __repr__(self) -> str:
        return f"Tool({self.spec.name!r})"


@overload
def tool(
    fn: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Approval | ApprovalPredicate = "allow",
    read_only: bool = False,
    on_unknown: OnUnknown | None = None,
    timeout_s: float | None = None,
    version: str = "",
    schema: Json | None = None,
) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Approval | ApprovalPredicate = "allow",
    read_only: bool = False,
    on_unknown: OnUnknown | None = None,
    timeout_s: float | None = None,
    version: str = "",
    schema: Json | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    fn: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Approval | ApprovalPredicate = "allow",
    read_only: bool = False,
    on_unknown: OnUnknown | None = None,
    timeout_s: float | None = None,
    version: str = "",
    schema: Json | None = None,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a function, method or other callable a tool: `@tool`, `@tool(approval="ask")`, `tool(service.refund)`.

    The schema comes from the annotations, the descriptions from `Annotated[T, "…"]`, `Field(description="…")` or the
    docstring; the function gets real dataclasses, enums, models, dates. A parameter annotated `ToolContext` is hidden
    from the model and filled in. Plain functions run in threads, in the caller's context.

    Args:
        name: What the model calls it; else the function's name.
        description: What the model is told; else the docstring.
        approval: Whether a call needs a person: "allow", "ask", "deny", or `(input, context)` → one of them, or a bool
            (True asks). A predicate that raises asks. The agent's policy may only make it stricter.
        read_only: It changes nothing, so it may be run again: on_unknown is then "retry".
        on_unknown: What to do when a crash or the time limit leaves its outcome unknown; "ask" for what has effects.
        timeout_s: After which the model gets an answer. Whoever runs the loop keeps the time: it cancels an async tool;
            a plain function cannot be stopped and runs on in its thread.
        version: Yours; part of what an approval is bound to, as name, schema and these settings are.
        schema: A JSON schema of an object, in place of the annotations; the function then gets plain JSON by keyword.

    Raises:
        ToolDefinitionError: it cannot be offered to a model; the text names tool, parameter and what to do.
    """
    options = _Options(name, description, approval, read_only, on_unknown, timeout_s, version, schema)
    return (lambda fn: _define(fn, options)) if fn is None else _define(fn, options)


@dataclass(frozen=True, slots=True)
class _Options:
    name: str | None
    description: str | None
    approval: Approval | ApprovalPredicate
    read_only: bool
    on_unknown: OnUnknown | None
    timeout_s: float | None
    version: str
    schema: Json | None


def _define(fn: Callable[P, R], options: _Options) -> Tool[P, R]:
    # Imported when the first tool is defined: it brings pydantic and the docstring parser.
    from ownloop.tools.signature import read_signature

    name = options.name if options.name is not None else getattr(fn, "__name__", "")
    _check(name, fn, options)
    frame = _scope()
    is_method = _is_method(fn, frame)
    signature = read_signature(name, fn, _names(fn, frame), is_method=is_method, schema=options.schema)
    predicate = options.approval if callable(options.approval) else None
    is_async = _is_async(fn)
    spec = ToolSpec(
        name=name,
        description=clean_text(signature.description if options.description is None else options.description),
        input_schema=signature.parameters.schema,
        approval="predicate" if callable(options.approval) else options.approval,
        read_only=options.read_only,
        on_unknown=options.on_unknown or ("retry" if options.read_only else "ask"),
        timeout_s=options.timeout_s,
        version=options.version,
        cancellable=is_async,
    )
    return Tool(spec, fn, signature.parameters, signature.contexts, is_async, predicate, is_method)


def _check(name: object, fn: object, options: _Options) -> None:
    """Refuse what is wrong before the parameters are looked at."""

    def refuse(what: str) -> NoReturn:
        raise ToolDefinitionError(f"tool {name!r}: {what}")

    if isinstance(fn, Tool):
        refuse("it is a tool already; pass the function it was made of, as `.fn`")
    if not callable(fn) or inspect.isclass(fn):
        refuse(f"{fn!r} is no function; a tool is a function, a method or an object that can be called")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        refuse("a tool's name is 1 to 64 of the characters a-z A-Z 0-9 _ -; pass name= to give it one")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        refuse("it yields, and a tool returns its result; to show how far it is, await ToolContext.progress")
    if not (callable(options.approval) or is_approval(options.approval)):
        refuse(f"approval is {options.approval!r}; expected 'allow', 'ask', 'deny' or a function")
    if options.on_unknown is not None and options.on_unknown not in get_args(OnUnknown):
        refuse(f"on_unknown is {options.on_unknown!r}; expected 'retry', 'error' or 'ask'")
    if options.timeout_s is not None and not _are_seconds(options.timeout_s):
        refuse(f"timeout_s is {options.timeout_s!r}; expected seconds greater than 0, or None for no limit")
    kinds: tuple[tuple[str, object, type], ...] = (
        ("read_only", options.read_only, bool),
        ("version", options.version, str),
        ("description", options.description or "", str),
        ("schema", options.schema or {}, dict),
    )
    for what, value, kind in kinds:
        if not isinstance(value, kind):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers need not be typed
            refuse(f"{what} is {value!r}; expected a {kind.__name__}")


def _are_seconds(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf


def _is_async(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004 - asked is what kind it is


def _scope() -> FrameType | None:
    """Return the frame that calls `tool`, or what `tool` returned: two calls above `_define`."""
    frame = inspect.currentframe()
    for _ in range(3):
        frame = frame and frame.f_back
    return frame


def _in_class_body(frame: FrameType) -> bool:
    return "__module__" in frame.f_locals and "__qualname__" in frame.f_locals


def _is_method(fn: Callable[..., Any], frame: FrameType | None) -> bool:
    """Tell whether `fn` stands in a class body and takes its instance: an unannotated first parameter."""
    function = inspect.unwrap(fn)
    if frame is None or not (_in_class_body(frame) and inspect.isfunction(function)):
        return False
    code = function.__code__
    return code.co_argcount > 0 and code.co_varnames[0] not in function.__annotations__


def _names(fn: Callable[..., Any], frame: FrameType | None) -> Mapping[str, Any]:
    """Return the names that a postponed annotation may use beside globals: those of the functions it is defined in."""
    names: dict[str, Any] = {}
    module = getattr(
        inspect.unwrap(fn), "__globals__", None
    )  # a function of another module knows nothing of its caller
    while frame is not None and frame.f_globals is module and frame.f_locals is not module:
        names = {**frame.f_locals, **names}
        frame = frame.f_back if _in_class_body(frame) else None
    return names
