"""Describes the JSON objects that the server answers with, for `/openapi.json`. Nothing is built from these descriptions."""
