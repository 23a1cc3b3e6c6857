from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from ownloop.core.events import Rule
from ownloop.core.policy import Opinion, Policy, opinion_of, opinion_of_failure, settle, strictest
from ownloop.core.toolspec import ToolSpec


def spec(name: str, *, read_only: bool = False) -> ToolSpec:
    return ToolSpec(name, "", {"type": "object"}, read_only=read_only)


@pytest.mark.parametrize("order", list(permutations(["allow", "ask", "deny"])))
def test_the_strictest_opinion_holds_in_any_order(order: Any):
    opinions = [Opinion(approval, approval) for approval in order]

    assert strictest(opinions).approval == "deny"
    assert strictest([o for o in opinions if o.approval != "deny"]).approval == "ask"


def test_of_equal_opinions_the_first_is_named():
    assert strictest([Opinion("ask", "tool"), Opinion("ask", "policy")]).rule == "tool"


POLICY = Policy(default="ask", read_only="allow", rules={"delete_*": "deny", "delete_draft": "allow", "save": "allow"})


@pytest.mark.parametrize(
    ("tool", "approval", "rule"),
    [
        (spec("send"), "ask", "policy default=ask"),
        (spec("look", read_only=True), "allow", "policy read_only=allow"),
        (spec("save"), "allow", "policy save=allow"),
        (spec("delete_all"), "deny", "policy delete_*=deny"),
        (spec("delete_all", read_only=True), "deny", "policy delete_*=deny"),
        (spec("delete_draft"), "deny", "policy delete_*=deny"),
        (spec("Delete_all"), "ask", "policy default=ask"),
    ],
)
def test_a_policy_says_what_its_strictest_matching_rule_says(tool: ToolSpec, approval: str, rule: str):
    assert POLICY.opinion(tool) == Opinion(approval, rule)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("wrong", [{"default": "yes"}, {"read_only": "ok"}, {"rules": {"a": "denny"}}])
def test_a_word_that_is_no_approval_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match="expected 'allow', 'ask' or 'deny'"):
        Policy(**wrong)


@pytest.mark.parametrize(
    ("answer", "approval"),
    [
        ("allow", "allow"),
        ("ask", "ask"),
        ("deny", "deny"),
        (True, "ask"),
        (False, "allow"),
        (1, "ask"),
        ("yes", "ask"),
        ([], "ask"),
    ],
)
def test_an_answer_in_code_is_an_approval_or_asks(answer: object, approval: str):
    found = opinion_of("policy", answer)

    assert found is not None
    assert found.approval == approval


def test_only_a_policy_may_have_no_opinion():
    nothing = opinion_of("approval predicate", None)

    assert opinion_of("policy", None) is None
    assert nothing is not None
    assert nothing.approval == "ask"


def test_code_that_raises_asks_and_says_so_without_its_words():
    found = opinion_of_failure("policy", KeyError("sk-secret"))

    assert found == Opinion("ask", "policy raised KeyError, so a person decides")


RULES = {"rule_1": Rule("rule_1", "refund", "t1", "i1")}


@pytest.mark.parametrize(
    ("approval", "tool", "tool_digest", "input_digest", "verdict", "rule"),
    [
        ("ask", "refund", "t1", "i1", "run", "rule_1"),
        ("ask", "refund", "t2", "i1", "ask", "said"),
        ("ask", "refund", "t1", "i2", "ask", "said"),
        ("ask", "other", "t1", "i1", "ask", "said"),
        ("deny", "refund", "t1", "i1", "deny", "said"),
        ("allow", "refund", "t1", "i1", "run", "said"),
    ],
)
def test_a_remembered_rule_holds_for_exactly_this_tool_and_input(
    approval: Any, tool: str, tool_digest: str, input_digest: str, verdict: str, rule: str
):
    assert settle(Opinion(approval, "said"), RULES, tool, tool_digest, input_digest) == (verdict, rule)
