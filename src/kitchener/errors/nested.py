"""Looks into an error: finds the errors in nested exception groups, and the causes that errors were raised from."""

from collections.abc import Iterator
from itertools import islice


def errors_in(error: BaseException) -> Iterator[BaseException]:
    """The errors in nested exception groups, in order; an error that is no group itself."""
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, BaseExceptionGroup):
            waiting.extend(reversed(each.exceptions))
        else:
            yield each


def first_error(error: BaseException) -> BaseException:
    """The first error in nested exception groups; an error that is no group itself."""
    return next(errors_in(error))


def sole_error(error: BaseException) -> BaseException:
    """The only error in nested exception groups, as task groups raise them; a group of several errors as it is."""
    found = list(islice(errors_in(error), 2))
    return found[0] if len(found) == 1 else error


def all_behind(error: BaseException) -> Iterator[BaseException]:
    """The error and all that can be reached from it: causes, errors that were being handled, and those in groups."""
    seen: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen[id(each)] = each
            yield each
            waiting += [each.__cause__, each.__context__]
            if isinstance(each, BaseExceptionGroup):
                waiting += each.exceptions


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """The error, its cause, the cause of that, and so on. An error that was being handled counts as the cause of a new one."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__
