"""The bounds of numbers and names that several tables of settings share."""

from typing import Annotated

from pydantic import Field, StringConstraints

Positive = Annotated[int, Field(ge=1, le=1_000_000_000_000)]
TokenCount = Annotated[int, Field(ge=0, le=1_000_000_000_000)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=128)]
