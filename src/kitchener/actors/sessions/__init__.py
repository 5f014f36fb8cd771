"""Sessions as virtual actors: who may run a turn, what a session knows, when it is in memory."""
