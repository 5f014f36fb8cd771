"""What is wrong with the body of a request, in words (`kitchener.serve.body_problems`)."""

import pytest
from pydantic import BaseModel, ConfigDict, Field

from kitchener.serve.native.approval_calls import Approval
from kitchener.serve.native.message_calls import NewMessage
from kitchener.serve.operations_table import checked_body
from kitchener.serve.problems import RequestRefused


class Bounded(BaseModel):
    """A body with bounds that no body of the server has."""

    model_config = ConfigDict(extra="forbid")

    number: int = Field(1, ge=1)
    """A number."""
    ratio: float | None = None
    """A fraction."""


@pytest.mark.parametrize(
    ("model", "body", "told"),
    [
        (NewMessage, {}, "message: required, but missing"),
        (NewMessage, {"message": "hello", "deadline": 3}, "deadline: there is no such field"),
        (NewMessage, {"message": "hello", "str": 3}, "str: there is no such field"),
        (NewMessage, {"message": None}, "message: expected a text, not null"),
        (NewMessage, {"message": "hello", "files": [{"name": "a"}]}, "files.0.data: required, but missing"),
        (Approval, {"scope": "PRIVATE"}, "scope: expected 'once' or 'session', not another text"),
        (Approval, {"scope": {}}, "scope: expected 'once' or 'session', not an object"),
        (Bounded, {"number": 0}, "number: expected a value greater than or equal to 1"),
        (Bounded, {"ratio": "PRIVATE"}, "ratio: expected a number, not a text"),
    ],
)
def test_the_first_problem_is_told_and_no_value_repeated(model: type[BaseModel], body: object, told: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        checked_body(model, body)
    assert (refused.value.status, str(refused.value)) == (400, told)
