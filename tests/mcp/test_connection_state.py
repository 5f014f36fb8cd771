"""What is noted of a connection that ended: its first reason and its first moment, whoever noticed the end."""

import math

import anyio

from kitchener.mcp.connection_state import ConnectionState


async def test_the_first_end_counts_and_the_first_reason() -> None:
    """How long a connection held decides whether its server is given up, so calls that end later must not move its end."""
    state = ConnectionState()
    assert math.isinf(state.lost_at)
    state.lose()
    first = state.lost_at
    await anyio.sleep(0.01)
    state.lose("it closed the connection")
    state.lose("it does not answer")
    assert (state.lost_at, state.lost.is_set()) == (first, True)
    assert state.cause_now("unknown") == "it closed the connection"
