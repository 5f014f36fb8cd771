"""Between which two neighbours does an answer change? Pure: it asks, and whoever runs it finds out."""

from collections.abc import Generator


def bisection(last: int) -> Generator[int, bool, int]:
    """Yields the places that it wants to know about, takes whether each is new, and returns a new one next to an old one.

    Place 0 is known to be old and the last one to be new. Where the answer changes several times, one of the changes from old
    to new is found; where it changes once, that one. It asks about log2(last) places, rounded up.

    Args:
        last: the last place, at least 1
    """
    old, new = 0, last
    while new - old > 1:
        middle = (old + new) // 2
        if (yield middle):
            new = middle
        else:
            old = middle
    return new
