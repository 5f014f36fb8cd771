"""Answers a program's queries to the ledgers: sessions, approvals and spending."""
