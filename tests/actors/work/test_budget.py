"""Token budgets in nested scopes."""

import pytest

from kitchener.actors import TokenBudgeter
from kitchener.actors.work.budget import Allocation, Budget
from kitchener.records.work_order import Cost

SESSION = ("SES-1",)
TURN = ("SES-1", "T-1")
WORK_ORDER = ("SES-1", "T-1", "WO-1")


def spent(tokens_in: int, tokens_out: int = 0) -> Cost:
    return Cost(input_tokens=tokens_in, output_tokens=tokens_out)


@pytest.fixture
def budgeter() -> TokenBudgeter:
    """A ceiling of 1,000 on the session, 500 on the turn, 300 on the work order."""
    books = TokenBudgeter()
    books.allocate(SESSION, 1_000)
    books.allocate(TURN, 500)
    books.allocate(WORK_ORDER, 300)
    return books


def test_a_scope_starts_with_what_it_was_given() -> None:
    books = TokenBudgeter()
    assert books.allocate(SESSION, 1_000) == Allocation(SESSION, 1_000)
    assert books.check(SESSION) == Budget(remaining=1_000, limit=1_000)


def test_what_is_spent_is_booked_in_all_scopes_around(budgeter: TokenBudgeter) -> None:
    budgeter.debit(WORK_ORDER, spent(100, 20))
    assert budgeter.check(WORK_ORDER) == Budget(180, 300)
    assert budgeter.check(TURN) == Budget(380, 500)
    assert budgeter.check(SESSION) == Budget(880, 1_000)


def test_what_is_spent_around_a_scope_is_not_booked_in_it(budgeter: TokenBudgeter) -> None:
    budgeter.debit(TURN, spent(100))
    assert budgeter.check(WORK_ORDER) == Budget(300, 300)
    assert budgeter.check(TURN).remaining == 400


def test_a_scope_has_no_more_left_than_any_around_it(budgeter: TokenBudgeter) -> None:
    budgeter.debit(TURN, spent(400))
    assert budgeter.check(WORK_ORDER).remaining == 100
    budgeter.debit(SESSION, spent(550))
    assert budgeter.check(WORK_ORDER).remaining == 50
    assert budgeter.check(TURN).remaining == 50


def test_more_than_allowed_shows_as_a_negative_rest(budgeter: TokenBudgeter) -> None:
    budgeter.debit(WORK_ORDER, spent(350))
    assert budgeter.check(WORK_ORDER).remaining == -50
    assert not budgeter.check(WORK_ORDER).covers(0)


def test_a_scope_without_a_limit_of_its_own_has_that_of_the_scopes_around() -> None:
    books = TokenBudgeter()
    books.allocate(SESSION, None)
    assert books.check(SESSION) == Budget(None, None)
    assert books.check(SESSION).covers(10**12)
    books.allocate(TURN, 500)
    books.allocate(WORK_ORDER, None)
    assert books.check(WORK_ORDER) == Budget(500, None)
    books.debit(WORK_ORDER, spent(500))
    assert books.check(WORK_ORDER).remaining == 0
    assert books.check(WORK_ORDER).covers(0)
    assert not books.check(WORK_ORDER).covers(1)
    assert books.check(SESSION).remaining is None


def test_a_scope_that_is_not_open_has_no_limit_and_books_nothing() -> None:
    books = TokenBudgeter()
    assert books.check(WORK_ORDER) == Budget(None, None)
    books.debit(WORK_ORDER, spent(100))
    books.allocate(WORK_ORDER, 300)
    assert books.check(WORK_ORDER).remaining == 300


def test_closing_a_scope_keeps_what_it_spent_in_those_around(budgeter: TokenBudgeter) -> None:
    budgeter.debit(WORK_ORDER, spent(100))
    budgeter.release(WORK_ORDER)
    budgeter.release(WORK_ORDER)
    assert budgeter.check(TURN).remaining == 400
    assert budgeter.check(WORK_ORDER) == Budget(400, None)  # only what the turn has left
    budgeter.allocate(WORK_ORDER, 300)
    assert budgeter.check(WORK_ORDER).remaining == 300


def test_opening_a_scope_again_keeps_what_it_spent_and_takes_the_new_limit(budgeter: TokenBudgeter) -> None:
    budgeter.debit(SESSION, spent(100))
    budgeter.allocate(SESSION, 5_000)
    assert budgeter.check(SESSION) == Budget(4_900, 5_000)


def test_a_session_that_comes_back_starts_with_what_its_ledger_says_it_spent() -> None:
    books = TokenBudgeter()
    books.allocate(SESSION, 1_000, used=700)
    assert books.check(SESSION).remaining == 300
    books.debit(SESSION, spent(100))
    books.allocate(SESSION, 1_000, used=700)  # the ledger does not know of an aborted turn's tokens; the books do
    assert books.check(SESSION).remaining == 200


def test_scopes_of_other_sessions_are_not_touched(budgeter: TokenBudgeter) -> None:
    budgeter.allocate(("SES-2",), 50)
    budgeter.debit(WORK_ORDER, spent(300))
    assert budgeter.check(("SES-2",)).remaining == 50


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="tokens = -1: a budget cannot be negative"):
        TokenBudgeter().allocate(SESSION, -1)


def test_a_budget_of_nothing_covers_nothing() -> None:
    books = TokenBudgeter()
    books.allocate(SESSION, 0)
    assert books.check(SESSION) == Budget(0, 0)
    assert not books.check(SESSION).covers(1)
