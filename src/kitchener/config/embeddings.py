"""Defines the settings of embeddings, by which turns are also ranked."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from kitchener.config.settings_parser import Name, Positive, Seconds, Settings


class EmbeddingsConfig(Settings):
    """`[embeddings]`: vectors of what was said, by which turns are ranked besides the words that they share.

    With them, a message also finds turns that say the same in other words. The scores used are on record, so a replay needs no
    model.
    """

    gone_keys: ClassVar[Mapping[str, str]] = {
        "scored": "was removed: the 64 most similar texts gain by their vectors",
        "pause_s": "was removed: after a failure nobody is asked for 60 times `deadline_s`",
        "max_stored": "was removed: 20 times `max_cached` vectors are stored",
    }

    kind: Literal["off", "hashing", "static", "openai_compatible"] = "off"
    """Where vectors come from. `off`: there are none, unless the program gives `open_runtime` a provider. `static`: a small
    model on this machine, of the extra `embeddings`. `openai_compatible`: any server with an /embeddings endpoint. `hashing`:
    letter groups without any model, for tests."""
    model: Name | None = None
    """Model to ask an endpoint for. The other kinds have one each."""
    base_url: str | None = None
    """Root of an OpenAI-compatible endpoint, such as `http://127.0.0.1:8080/v1`. What is said is sent there."""
    api_key: str | None = None
    """Reference to the endpoint's key: `env:OPENAI_API_KEY` or `file:/run/secrets/key`. None: no key is sent."""
    weight: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.15
    """What a text gains that says the same as the message, as a share of the best score by words; others in proportion."""
    deadline_s: Seconds = 0.5
    """Longest wait of a turn for vectors, seconds. A text without one is then ranked by its words alone. After a failure,
    nobody is asked for 60 times as long."""
    batch: Annotated[int, Field(ge=1, le=2_048)] = 32
    """Texts of one call. A call that passes the deadline halves it for the next ones."""
    max_text_chars: Annotated[int, Field(ge=16, le=1_000_000)] = 2_000
    """Characters of a text that count; the beginning of a longer one."""
    max_cached: Positive = 50_000
    """Vectors in memory, for all sessions together; of one history, the newest. A vector of 256 numbers takes
    about half a KiB. The file under `plane_root` holds 20 times as many. Beyond it, the oldest are removed, and made again when
    needed."""

    @property
    def pause_s(self) -> float:
        """Seconds without requests for vectors after a failure, so that failures take little of the time."""
        return 60 * self.deadline_s

    @property
    def max_stored(self) -> int:
        """Vectors in the file under `plane_root`."""
        return 20 * self.max_cached

    @model_validator(mode="after")
    def _check_endpoint(self) -> Self:
        for key in ("base_url", "model"):
            if self.kind == "openai_compatible" and getattr(self, key) is None:
                raise ValueError(f"embeddings: kind 'openai_compatible' needs `{key}`")
        return self
