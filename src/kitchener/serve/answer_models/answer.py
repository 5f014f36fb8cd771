"""The base of the descriptions of answers.

An answer is written where it is made, as plain JSON types. The tests of the server compare every answer with its description.
"""

from kitchener.config.field_docstrings import DescribedModel


class DescribedAnswer(DescribedModel):
    """A JSON object that the server sends. Clients must accept further fields."""


JsonObject = dict[str, object]
"""An object whose fields another page describes."""


class ProblemDetail(DescribedAnswer):
    """The error of a failed request."""

    message: str
    """A text for people."""
    type: str
    """The family of the error, such as `invalid_request_error`."""
    param: None
    """Always null."""
    code: str
    """A code for programs; `docs/server.md` lists the codes."""


class ProblemAnswer(DescribedAnswer):
    """The answer to a request that failed."""

    error: ProblemDetail
