"""Compares answers of the server with what `/openapi.json` says of them: status, kind of content, and every field."""

import re
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import orjson

from kitchener.serve.operations_table import Served, open_api


class DescribedServer:
    """The description of a server, with a check of its answers. Fields that it does not name count as wrong.

    Args:
        operations: of the server
    """

    def __init__(self, operations: Sequence[Served]) -> None:
        self.description = open_api(operations)
        known = strict(self.description)
        self._paths = [
            (re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), found) for path, found in known["paths"].items()
        ]
        self._components = known["components"]
        self._validators: dict[int, jsonschema_rs.Validator] = {}

    def check(self, method: str, path: str, status: int, kind: str, body: bytes) -> None:
        """Fails unless this answer is described."""
        found = next((each for pattern, each in self._paths if pattern.fullmatch(path)), None)
        operation = None if found is None else found.get(method.lower())
        if operation is None:
            return
        told = f"{method} {path}: {status} {kind}"
        answers = operation["responses"]
        assert str(status) in answers, f"{told} is not described"
        content = answers[str(status)]["content"]
        kind = kind.partition(";")[0]
        assert kind in content, f"{told}: this kind of content is not described"
        if kind == "application/json":
            self._validator(content[kind]["schema"]).validate(orjson.loads(body))

    def _validator(self, schema: dict[str, Any]) -> jsonschema_rs.Validator:
        if id(schema) not in self._validators:
            whole = {**schema, "components": self._components}
            self._validators[id(schema)] = jsonschema_rs.validator_for(whole)
        return self._validators[id(schema)]


def strict(schema: Any) -> Any:
    """The same schema, without objects that may have fields which it does not name."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(each) for name, each in schema.items()}
    return {**found, "additionalProperties": False} if isinstance(found.get("properties"), dict) else found


def described(operations: Sequence[Served]) -> DescribedServer:
    """The description of a server. It is made once for all servers with the same operations."""
    key = tuple((each.method, each.path) for each in operations)
    if key not in _KEPT:
        _KEPT[key] = DescribedServer(operations)
    return _KEPT[key]


_KEPT: dict[tuple[tuple[str, str], ...], DescribedServer] = {}
