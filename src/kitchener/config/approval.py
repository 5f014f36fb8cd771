"""Settings of approval: which tools run unasked, which wait for a person, and which are not offered."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from kitchener.config.settings_parser import Name, Settings

TRAITS: Final = ("read_only", "destructive", "idempotent", "open_world", "trusted")
"""What a condition can ask of a tool."""


def condition_terms(condition: str) -> dict[str, bool]:
    """Returns the traits that a condition names, each with the value that it must have.

    Raises:
        ValueError: the text is no condition
    """
    found: dict[str, bool] = {}
    for term in condition.split(" and ") if condition else ():
        words = term.split()
        trait = words[-1] if words else ""
        if words not in ([trait], ["not", trait]) or trait not in TRAITS or trait in found:
            raise ValueError(
                f"expected different traits joined by 'and', each of {', '.join(TRAITS)}, or 'not' before one of them"
            )
        found[trait] = len(words) == 1
    return found


def _known_condition(condition: str) -> str:
    condition_terms(condition)
    return condition


Decision = Literal["allow", "ask", "deny"]
"""`allow`: the tool runs. `ask`: each call waits for a person. `deny`: the tool is not offered."""


class ApprovalRule(Settings):
    """`[[agents.<class>.approval.rules]]`: what holds for the tools of one name or pattern."""

    tool: Name
    """Name of a tool, or a pattern such as `fs.*`. Tools of an MCP server are called `SERVER.TOOL`."""
    when: Annotated[str, AfterValidator(_known_condition)] = ""
    """Traits that the tool must have: `read_only`, `destructive`, `idempotent`, `open_world`, `trusted`, each with or without
    `not`, joined by `and`. Empty: any tool."""
    decision: Decision
    """`allow`: the tool runs. `ask`: each call waits for a person. `deny`: the tool is not offered."""


class ApprovalConfig(Settings):
    """`[agents.<class>.approval]`: which tools run unasked, which wait for a person, and which are not offered."""

    rules: tuple[ApprovalRule, ...] = ()
    """Rules in order: the first one that fits a tool decides. A tool that none fits asks if it is declared with
    `requires_approval`; otherwise the defaults hold."""
    default: Decision = "allow"
    """What holds for functions that no rule fits."""
    mcp_default: Decision = "ask"
    """What holds for tools of MCP servers that no rule fits, unless the server's `trust_annotations` is set and the tool is
    read-only."""
    after_untrusted: Decision = "allow"
    """What holds for a tool with effects that would otherwise run, once the turn has read text of an untrusted source, such as
    a web page. `allow`: it runs. `ask`: each call waits for a person. `deny`: its calls are refused."""
    expires_s: Annotated[int, Field(ge=1, le=31_536_000)] = 86_400
    """How long a request waits for an answer, seconds. A day."""
    max_pending: Annotated[int, Field(ge=0, le=1_000)] = 16
    """Requests of one session that may wait. A further call is refused, and the model reads why."""
