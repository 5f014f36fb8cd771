"""The names of spans, attributes, events and metrics, with the bounds of buckets.

Names that begin with `gen_ai` are those of the GenAI conventions of OpenTelemetry, which are still in development. A test
compares them with the reference. The strings stand here, because the modules that define them change their place with each
release.
"""

from typing import Final

INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
SEARCH_MEMORY: Final = "search_memory"
UPSERT_MEMORY: Final = "upsert_memory"
COMMIT: Final = "kitchener.commit"
"""A wait for durable ledgers; the conventions have no name for it."""

OPERATION: Final = "gen_ai.operation.name"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_write.input_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
ERROR_TYPE: Final = "error.type"

SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"

SESSION_ID: Final = "kitchener.session.id"
TURN_ID: Final = "kitchener.turn.id"
WORK_ORDER_ID: Final = "kitchener.work_order.id"
LEDGER_ENTRY: Final = "kitchener.ledger.entry"
"""The last entry of the turn in HO2m."""
LEDGER_ID: Final = "kitchener.ledger.id"
LEDGER_POSITION: Final = "kitchener.ledger.position"
"""The number of the last entry of the ledger."""
PROVIDER_ID: Final = "kitchener.provider.id"
ROUTE_REASON: Final = "kitchener.route.reason"
ATTEMPT: Final = "kitchener.attempt"
QUALITY_PASSED: Final = "kitchener.quality_gate.passed"
APPROVAL_PENDING: Final = "kitchener.approval.pending"
"""The requests for approval that a turn ended with."""
APPROVAL_ANSWERED: Final = "kitchener.approval.answered"
"""The requests whose answers let a turn continue."""
APPROVAL_QUESTION: Final = "kitchener.approval.question"
"""Whether a tool asked a person, so that its call is not over."""
MEMORY_LINES: Final = "kitchener.memory.lines"
"""How many learned lines were selected."""

VENDORS: Final = {
    "anthropic": "anthropic",
    "azure": "azure.ai.openai",
    "bedrock-mantle": "aws.bedrock",
    "cohere": "cohere",
    "deepseek": "deepseek",
    "google": "gcp.gemini",
    "google-cloud": "gcp.vertex_ai",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "groq": "groq",
    "mistral": "mistral_ai",
    "openai": "openai",
    "openai-chat": "openai",
    "openai-responses": "openai",
}
"""What the conventions call a vendor, by the name before the colon of `model`."""

INFERENCE_DETAILS: Final = "gen_ai.client.inference.operation.details"

OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
TOKEN_USAGE: Final = "gen_ai.client.token.usage"
FIRST_CHUNK_DURATION: Final = "gen_ai.client.operation.time_to_first_chunk"
AGENT_DURATION: Final = "gen_ai.invoke_agent.duration"
TOOL_DURATION: Final = "gen_ai.execute_tool.duration"

CALL_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
AGENT_SECONDS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
TOKENS: Final = tuple(4**power for power in range(14))

CAPTURE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The environment variable that says where content may stand."""
