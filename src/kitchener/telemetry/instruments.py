"""The histograms of the GenAI conventions. They cost next to nothing where the program has no meter provider."""

from collections.abc import Sequence

from opentelemetry.metrics import Histogram, Meter

from kitchener.telemetry import names


class Instruments:
    """The histograms that operations are recorded in.

    Args:
        meter: makes them
    """

    __slots__ = ("agent", "call", "first_chunk", "tokens", "tool")

    def __init__(self, meter: Meter) -> None:
        def seconds(name: str, description: str, bounds: Sequence[float]) -> Histogram:
            return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=bounds)

        self.call = seconds(names.OPERATION_DURATION, "Duration of one attempt of a model call.", names.CALL_SECONDS)
        self.first_chunk = seconds(names.FIRST_CHUNK_DURATION, "Time to the first text of a stream.", names.CALL_SECONDS)
        self.agent = seconds(names.AGENT_DURATION, "Duration of a turn.", names.AGENT_SECONDS)
        self.tool = seconds(names.TOOL_DURATION, "Duration of a tool call.", names.CALL_SECONDS)
        self.tokens = meter.create_histogram(
            names.TOKEN_USAGE,
            "{token}",
            "Tokens of one attempt of a model call.",
            explicit_bucket_boundaries_advisory=names.TOKENS,
        )
