"""Tracks token budgets in nested scopes: session, turn, work order. It keeps them in memory and records nothing.

A scope is a tuple of ids, outermost first: `(session,)`, `(session, turn)`, `(session, turn, work order)`. A debit counts in
the scope and in all enclosing scopes; input from a provider's cache counts for the session only. What remains in a scope is the
minimum over the scope and its enclosing scopes.
"""

from typing import NamedTuple

from kitchener.records.work_order import Cost

BudgetScope = tuple[str, ...]
"""The ids of a scope, outermost first."""


class Allocation(NamedTuple):
    """The token limit of an open scope."""

    scope: BudgetScope
    tokens: int | None
    """The scope's own limit; None: it has none."""


class Budget(NamedTuple):
    """The tokens that a scope may still use."""

    remaining: int | None
    """Tokens left; None: without limit. Negative if more was used than allowed."""
    limit: int | None
    """The scope's own limit; None: it has none."""

    def covers(self, tokens: int) -> bool:
        """Whether at least this many tokens remain."""
        return self.remaining is None or self.remaining >= tokens


class _Account:
    """Limit and used tokens of an open scope."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int | None, used: int) -> None:
        self.limit, self.used = limit, used


class TokenBudgeter:
    """Tracks the budgets of all open scopes. `release` closes a scope and frees its memory."""

    def __init__(self) -> None:
        self._accounts: dict[BudgetScope, _Account] = {}

    def allocate(self, scope: BudgetScope, tokens: int | None, *, used: int = 0) -> Allocation:
        """Opens a scope with its own limit.

        Args:
            scope: the scope; opening it again sets a new limit and keeps the used tokens
            tokens: the scope's limit; None: no limit of its own
            used: tokens already used, for a session activated from the ledger

        Raises:
            ValueError: `tokens` is negative
        """
        if tokens is not None and tokens < 0:
            raise ValueError(f"tokens = {tokens}: a budget cannot be negative")
        account = self._accounts.get(scope)
        if account is None:
            self._accounts[scope] = _Account(tokens, max(used, 0))
        else:
            account.limit, account.used = tokens, max(used, account.used)
        return Allocation(scope, tokens)

    def check(self, scope: BudgetScope) -> Budget:
        """Returns what the scope may still use under its own limit and those of its enclosing scopes."""
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

    def debit(self, scope: BudgetScope, usage: Cost) -> None:
        """Adds the used tokens to the scope and to all enclosing scopes; to a session's also those from a provider's cache."""
        tokens = usage.input_tokens + usage.output_tokens
        while scope:
            account = self._accounts.get(scope)
            if account is not None:
                account.used += tokens - usage.cached_tokens if len(scope) > 1 else tokens
            scope = scope[:-1]

    def release(self, scope: BudgetScope) -> None:
        """Closes a scope. Its used tokens still count in the enclosing scopes."""
        self._accounts.pop(scope, None)
