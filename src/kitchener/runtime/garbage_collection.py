"""Tunes Python's garbage collector for a process that serves turns."""

import gc


def tune_gc() -> None:
    """Tunes the garbage collector for a process that only serves turns.

    Later collections skip the objects that exist now. Collections become rare, so most objects of a turn are freed before a
    collection examines them. An application or server calls this once, after loading; the library never calls it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
