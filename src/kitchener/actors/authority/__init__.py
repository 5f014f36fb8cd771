"""The Context Authority in a running session: its input is kept here, its decisions go on record here."""
