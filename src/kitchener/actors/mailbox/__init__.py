"""Bounded mailboxes, and the components hosted behind them."""
