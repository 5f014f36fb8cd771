"""The names of spans, attributes and metrics, and the bounds of buckets, are those of the reference implementation."""

import inspect
import re

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.util.genai import _agent_invocation as reference_agent
from opentelemetry.util.genai import _inference_invocation as reference_call
from opentelemetry.util.genai import _instruments as reference
from opentelemetry.util.genai.environment_variables import OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT
from opentelemetry.util.genai.types import ContentCapturingMode

from kitchener.telemetry import names
from kitchener.telemetry.captured_content import CapturedContent

NOT_IN_THE_REFERENCE = {names.SEARCH_MEMORY, names.UPSERT_MEMORY}
"""Operations that the conventions have, and the reference does not yet."""


def test_every_name_of_the_conventions_is_in_the_reference() -> None:
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    known |= {value for name, value in vars(gen_ai_metrics).items() if name.startswith("GEN_AI_")}
    known |= {value for name, value in vars(reference).items() if name.startswith("_GEN_AI_") and isinstance(value, str)}
    known |= {reference_agent._GEN_AI_USAGE_CACHE_WRITE_INPUT_TOKENS, error_attributes.ERROR_TYPE}
    known |= set(re.findall(r'event_name="([\w.]+)"', inspect.getsource(reference_call)))
    known |= {each.value for each in gen_ai_attributes.GenAiOperationNameValues} | NOT_IN_THE_REFERENCE
    ours = {value for value in vars(names).values() if isinstance(value, str) and value.startswith(("gen_ai.", "error."))}
    assert len(ours) >= 30
    assert ours - known == set()
    operations = {names.INVOKE_AGENT, names.CHAT, names.EXECUTE_TOOL, *NOT_IN_THE_REFERENCE}
    assert operations <= known
    assert set(names.VENDORS.values()) <= {each.value for each in gen_ai_attributes.GenAiProviderNameValues}
    assert names.CAPTURE_CONTENT == OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT
    assert set(CapturedContent.__members__) == set(ContentCapturingMode.__members__)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (names.CALL_SECONDS, reference._GEN_AI_CLIENT_OPERATION_DURATION_BUCKETS),
        (names.CALL_SECONDS, reference._GEN_AI_EXECUTE_TOOL_DURATION_BUCKETS),
        (names.AGENT_SECONDS, reference._GEN_AI_INVOKE_AGENT_DURATION_BUCKETS),
        (names.TOKENS, reference._GEN_AI_CLIENT_TOKEN_USAGE_BUCKETS),
    ],
)
def test_the_bounds_of_buckets_are_those_of_the_reference(ours: tuple[float, ...], theirs: list[float]) -> None:
    assert list(ours) == theirs
