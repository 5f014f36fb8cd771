"""Pure: which work orders a turn needs, whether a result may stand, what it may cost."""
