"""JSON schemas: compiled, checked, and kept from taking too long."""
