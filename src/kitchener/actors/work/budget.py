"""Token budgets in nested scopes: session, turn, work order. Plain functions on a table; nothing is on record here.

A scope is a tuple of ids, outermost first: `(session,)`, `(session, turn)`, `(session, turn, work order)`. What is debited
from a scope is debited from all that enclose it; what remains in a scope is the least of what remains in any of them.
"""

from typing import NamedTuple

from kitchener.records.work_order import Cost

Scope = tuple[str, ...]


class Allocation(NamedTuple):
    """Tokens set aside for a scope."""

    scope: Scope
    tokens: int | None
    """None: no limit of its own."""


class Budget(NamedTuple):
    """What a scope may still use."""

    remaining: int | None
    """Tokens; None: without limit. Negative when more was used than allowed."""
    limit: int | None
    """The scope's own limit."""

    def covers(self, tokens: int) -> bool:
        """Whether so many tokens may still be used."""
        return self.remaining is None or self.remaining >= tokens


class _Account:
    """What is known of an open scope."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int | None, used: int) -> None:
        self.limit, self.used = limit, used


class TokenBudgeter:
    """Keeps the books of all open scopes. Memory is bounded by the scopes that are open; `release` closes one."""

    def __init__(self) -> None:
        self._accounts: dict[Scope, _Account] = {}

    def allocate(self, scope: Scope, tokens: int | None, *, used: int = 0) -> Allocation:
        """Opens a scope with its own limit.

        Args:
            scope: which one; opening it again sets a new limit and keeps what was used
            tokens: its limit; None is no limit of its own
            used: tokens already used in it, of a session that comes back from the ledger
        """
        if tokens is not None and tokens < 0:
            raise ValueError(f"tokens = {tokens}: a budget cannot be negative")
        account = self._accounts.get(scope)
        if account is None:
            self._accounts[scope] = _Account(tokens, max(used, 0))
        else:
            account.limit, account.used = tokens, max(used, account.used)
        return Allocation(scope, tokens)

    def check(self, scope: Scope) -> Budget:
        """What the scope may still use, under its own limit and those that enclose it."""
        remaining: int | None = None
        own = self._accounts.get(scope)
        account, outer = own, scope
        while outer:
            if account is not None and account.limit is not None:
                left = account.limit - account.used
                if remaining is None or left < remaining:
                    remaining = left
            outer = outer[:-1]
            account = self._accounts.get(outer)
        return Budget(remaining, own.limit if own is not None else None)

    def debit(self, scope: Scope, usage: Cost) -> None:
        """Books what was used, in the scope and in all that enclose it."""
        tokens = usage.input_tokens + usage.output_tokens
        while scope:
            account = self._accounts.get(scope)
            if account is not None:
                account.used += tokens
            scope = scope[:-1]

    def release(self, scope: Scope) -> None:
        """Closes a scope; what it used stays booked in those that enclose it."""
        self._accounts.pop(scope, None)


def estimate_tokens(text: str, estimator: str) -> int:
    """Tokens of a text before any provider counted them: a third of its UTF-8 bytes, or a quarter of its characters."""
    if estimator == "chars/4":
        return -(-len(text) // 4)
    return -(-(len(text) if text.isascii() else len(text.encode())) // 3)
