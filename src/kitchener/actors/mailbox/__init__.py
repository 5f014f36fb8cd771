"""Bounded mailboxes and the components that they host."""
