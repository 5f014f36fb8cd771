"""Defines what gives vectors for texts, and the scores that a turn got from them.

Implementations are in `kitchener.gateway.embedding_providers`. Explained in `docs/context.md`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from kitchener.records.entries import EmbeddingProblem, SimilarityMapping

FULL_SCORE = 1_000
"""The score of a text that says the same as the message."""


class EmbeddingProvider(Protocol):
    """Gives vectors for texts. Texts with similar vectors have similar meanings.

    Any error counts as a failure: the turn is then ranked by words alone.
    """

    @property
    def model_id(self) -> str:
        """Names the model. Vectors of one name are compared with each other, and kept under it."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Returns one vector for each text, in order. All have the same number of finite numbers; their length is not used."""
        ...


class Similarity(NamedTuple):
    """How similar earlier texts are to a message, as a turn used it."""

    model: str
    """The model of the vectors."""
    weight: float
    """What the full score gains, as a share of the best score by words."""
    scores: Mapping[str, int]
    """Entry id of a message or a reply to its score, 1 to 1,000. Others gain nothing."""
    without: int
    """Texts that had no vector in time, and were ranked by words alone."""
    problem: EmbeddingProblem | None = None
    """Why vectors are missing; None: none are, or the deadline was enough for all but the oldest texts."""

    def as_mapping(self) -> SimilarityMapping:
        """The form on record."""
        fields: SimilarityMapping = {
            "model": self.model,
            "weight": self.weight,
            "scores": dict(self.scores),
            "without": self.without,
        }
        if self.problem is not None:
            fields["problem"] = self.problem
        return fields

    @classmethod
    def from_mapping(cls, fields: SimilarityMapping) -> "Similarity":
        """Reads the form on record."""
        return cls(fields["model"], fields["weight"], fields["scores"], fields["without"], fields.get("problem"))
