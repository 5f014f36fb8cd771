"""Every setting changes something that a user can see.

Of those that decide in a recorded turn, `tests/replay/mutated/test_mutated_settings.py` shows it. Each other one stands here
with a scene and two values under which the scene comes out differently. A setting without a line here fails, and so does one
that no longer does anything: in `make test` one setting of each scene, in `make soak` all.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.config import observed_administration as administered
from tests.config import observed_approval as approval
from tests.config import observed_components as components
from tests.config import observed_embeddings as embedded
from tests.config import observed_servers as servers
from tests.config import observed_serving as served
from tests.config import observed_telemetry as told
from tests.config import observed_turns as turns
from tests.config.observed_turns import CLOCK, Observer, with_settings
from tests.replay.mutated.knobs import KNOBS


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Time stands still until a scene moves it, which only trio can."""
    return "trio", {"clock": CLOCK}


class Seen(NamedTuple):
    """A setting, and how it shows."""

    one: Any
    """A value."""
    other: Any
    """A value under which the scene comes out differently."""
    observe: Observer


def limits(key: str, scene: Any, one: Any, other: Any, **others: Any) -> Seen:
    """A setting of `[limits]`."""
    return Seen(one, other, lambda root, value: scene(root, limits={key: value}, **others))


def ledger_place(table: str, key: str, *, other: str | None = "{}", **config: Any) -> Seen:
    """A setting that holds a path, in `[table]`."""

    def observe(root: Path, value: Any) -> Any:
        return turns.files(root, "elsewhere", **{table: {**config, key: value}})

    return Seen(None, other, observe)


def agent_place(key: str, name: str = "", **config: Any) -> Seen:
    """A setting of ADMIN that holds a path."""

    def observe(root: Path, value: Any) -> Any:
        return turns.files(root, f"elsewhere/{name}", agents={"ADMIN": {**config, key: value}})

    return Seen(None, "{}", observe)


def tool_limit(key: str, **config: Any) -> Observer:
    """A limit of one tool."""
    return lambda root, value: turns.tool_run(root, tool_limits={"dig": {key: value}}, **config)


def served_client(key: str, one: Any, other: Any) -> Seen:
    """A setting of `[serve.clients.<name>]`."""
    return Seen(one, other, lambda root, value: served.client_asked(root, key, value))


LATE_TOOL: Final = {"seconds": 10.0, "tool_timeout_s": 500.0, "turn_deadline_s": turns.LATE_S + 1}
"""A tool that ends one second before its turn must."""


def _plane(root: Path, value: str) -> Any:
    return turns.files(root, value, plane_root="{}")


SHOWN: Final[dict[str, Seen]] = {
    "plane_root": Seen("one", "other", _plane),
    "ledger.durability": Seen("fsync", "os", with_settings(components.commits, "durability")),
    "ledger.linger_ms": Seen(0.0, 1_000.0, with_settings(components.commits, "linger_ms")),
    "ledger.max_pending_entries": Seen(1, 100, with_settings(components.one_by_one, "max_pending_entries")),
    "ledger.segment_bytes": Seen(1_048_576, 67_108_864, with_settings(components.segments, "segment_bytes")),
    "ledger.max_clock_jump_s": Seen(3_600.0, 86_400.0, with_settings(components.late_entry, "max_clock_jump_s")),
    "ledger.accept_clock_jump": Seen(False, True, with_settings(components.late_entry, "accept_clock_jump")),
    "ledger.verify_on_open": Seen("checkpoint", "full", with_settings(components.reopened, "verify_on_open")),
    "ledger.seal": Seen(True, False, lambda root, value: turns.files(root, ledger={"durability": "os", "seal": value})),
    "ledger.keyring": ledger_place("ledger", "keyring", durability="os"),
    "ledger.signing_key": Seen(None, "key.pem", components.signed),
    "limits.max_running_turns": Seen(1, 8, with_settings(turns.crowd, "max_running_turns")),
    "limits.max_waiting_turns": Seen(1, 8, with_settings(turns.crowd, "max_waiting_turns", max_running_turns=1)),
    "limits.max_active_sessions": limits("max_active_sessions", turns.passivated, 1, 8),
    "limits.max_active_chars": limits("max_active_chars", turns.passivated_by_text, 1, 100_000),
    "limits.executor_concurrency": Seen(1, 8, with_settings(turns.crowd, "executor_concurrency")),
    "limits.background_concurrency": limits("background_concurrency", turns.learning, 1, 8),
    "limits.gateway_queue": Seen(1, 8, with_settings(turns.crowd, "gateway_queue", calls=1)),
    "limits.max_nesting": Seen(0, 1, with_settings(turns.nested, "max_nesting")),
    "limits.max_agent_classes": limits("max_agent_classes", turns.asked, 0, 1, agent_class="guest", has_classes=False),
    "limits.max_restarts": Seen(1, 100, with_settings(turns.failing, "max_restarts")),
    "limits.abort_grace_s": Seen(1.0, 1_000.0, with_settings(turns.given_up, "abort_grace_s")),
    "limits.shutdown_grace_s": Seen(1.0, 1_000.0, with_settings(turns.shut_down, "shutdown_grace_s")),
    "limits.max_message_chars": limits("max_message_chars", turns.asked, 4, 5),
    "limits.max_parts": limits("max_parts", turns.attached, 0, 1),
    "limits.max_part_bytes": limits("max_part_bytes", turns.attached, 4, 5),
    "limits.max_content_bytes": limits("max_content_bytes", turns.attached, 4, 1_000),
    "limits.stream_buffer": Seen(1, 256, with_settings(turns.streamed, "stream_buffer")),
    "admin.socket": Seen(False, True, with_settings(administered.listens, "socket")),
    "admin.deadline_s": Seen(1.0, 1_000.0, with_settings(administered.slow_operation, "deadline_s")),
    "memory.enabled": Seen(False, True, with_settings(turns.memory_of, "enabled", custom_kinds=("mood",))),
    "memory.memory_dir": ledger_place("memory", "memory_dir", enabled=True),
    "memory.custom_kinds": Seen((), ("mood",), with_settings(turns.memory_of, "custom_kinds", enabled=True)),
    "memory.resident_events": Seen(1_000, 200_000, with_settings(components.read_again, "resident_events")),
    "embeddings.kind": Seen("hashing", "off", with_settings(embedded.talked, "kind")),
    "embeddings.model": Seen("small", "large", with_settings(embedded.over_http, "model")),
    "embeddings.base_url": Seen("{}", "{}/other", with_settings(embedded.over_http, "base_url")),
    "embeddings.api_key": Seen(None, "env:HOME", with_settings(embedded.over_http, "api_key")),
    "embeddings.weight": Seen(0.0, 0.5, with_settings(embedded.talked, "weight")),
    "embeddings.deadline_s": Seen(1.0, 1_000.0, with_settings(embedded.waited, "deadline_s")),
    "embeddings.batch": Seen(2, 32, with_settings(embedded.first_of_a_history, "batch")),
    "embeddings.max_text_chars": Seen(16, 2_000, with_settings(embedded.talked, "max_text_chars")),
    "embeddings.max_cached": Seen(4, 50_000, with_settings(embedded.talked, "max_cached")),
    "spending.subject_day": Seen(0.001, 5.0, with_settings(turns.spent, "subject_day")),
    "spending.subject_day_tokens": Seen(100, 50_000, with_settings(turns.spent, "subject_day_tokens")),
    "spending.turn": Seen(0.001, 5.0, with_settings(turns.spent, "turn")),
    "serve.host": Seen("127.0.0.1", "127.0.0.2", lambda root, value: served.listened(root, "host", value)),
    "serve.port": Seen(0, served.FREE_PORT, lambda root, value: served.listened(root, "port", value)),
    "serve.lock_wait_s": Seen(0.0, 80_000.0, with_settings(served.waited_for, "lock_wait_s")),
    "serve.allowed_hosts": Seen((), ("chat.example",), with_settings(served.named, "allowed_hosts")),
    "serve.session_headers": Seen((), ("X-Room",), with_settings(served.named_here, "session_headers")),
    "serve.subject_headers": Seen(("X-Kitchener-Subject",), ("X-Person",), with_settings(served.acted_for, "subject_headers")),
    "serve.subject_token_header": Seen(
        "X-OpenWebUI-User-Jwt", "X-Signed", with_settings(served.signed_for, "subject_token_header")
    ),
    "serve.cache_key_names_session": Seen(False, True, with_settings(served.named_here, "cache_key_names_session")),
    "telemetry.traces": Seen(False, True, with_settings(told.logged, "traces")),
    "serve.utility_calls": Seen("allow", "refuse", with_settings(served.plain_models, "utility_calls")),
    "serve.utility_prompts": Seen((), ("A title for:*",), with_settings(served.titled, "utility_prompts")),
    "serve.summary_prompts": Seen((), ("Sum up:*",), with_settings(served.summed_up, "summary_prompts")),
    "serve.page": Seen(False, True, with_settings(served.paged, "page")),
    "serve.client_gone": Seen("detach", "cancel", with_settings(served.left, "client_gone")),
    "serve.max_request_bytes": Seen(1_024, 65_536, with_settings(served.long_body, "max_request_bytes")),
    "serve.request_timeout_s": Seen(1.0, 1_000.0, with_settings(served.slow_body, "request_timeout_s")),
    "serve.text_interval_s": Seen(0.0, 1.0, with_settings(served.streamed, "text_interval_s")),
    "serve.wrong_keys_per_minute": Seen(1, 8, with_settings(served.guessed, "wrong_keys_per_minute")),
    "serve.trusted_proxies": Seen((), ("127.0.0.1",), with_settings(served.guessed, "trusted_proxies")),
    "serve.max_requests": Seen(1, 8, with_settings(served.crowded, "max_requests")),
    "serve.clients.*.key": served_client("key", "env:SERVED_KEY", "env:OTHER_KEY"),
    "serve.clients.*.subject": served_client("subject", "ada", "cy"),
    "serve.clients.*.subject_secret": Seen(
        "env:SERVED_SECRET", "env:OTHER_SECRET", with_settings(served.signed_with, "subject_secret")
    ),
    "serve.clients.*.agents": served_client("agents", ("ADMIN",), ("*",)),
    "serve.clients.*.rights": served_client("rights", ("chat",), ("read",)),
    "serve.clients.*.requests_per_minute": served_client("requests_per_minute", 1, 600),
    "serve.clients.*.max_request_bytes": Seen(1_024, None, with_settings(served.client_long_body, "max_request_bytes")),
    "serve.clients.*.max_requests": Seen(1, 8, with_settings(served.client_crowded, "max_requests")),
    "serve.clients.*.subject_share": Seen(0.25, 1.0, with_settings(served.client_subject, "subject_share")),
    "serve.clients.*.schema_ms_per_minute": Seen(10, 60_000, with_settings(served.client_schemas, "schema_ms_per_minute")),
    "router.providers.*.kind": Seen("offline", "openai_compatible", components.kind),
    "router.providers.*.base_url": Seen("{}", "{}/other", with_settings(components.over_http, "base_url")),
    "router.providers.*.api_key": Seen(None, "env:HOME", with_settings(components.over_http, "api_key")),
    "router.providers.*.ca_file": Seen(None, "missing.pem", with_settings(components.opened, "ca_file")),
    "router.providers.*.client_cert": Seen(None, "missing.pem", with_settings(components.opened, "client_cert")),
    "router.providers.*.client_key": Seen(None, "missing.pem", with_settings(components.opened_with_certificate, "client_key")),
    "router.providers.*.proxy": Seen("none", "env:NO_SUCH_PROXY", with_settings(components.opened, "proxy")),
    "router.providers.*.media_types": Seen(
        (), ("text/*",), lambda root, value: turns.attached(root, lane={"media_types": value})
    ),
    "router.providers.*.prompt_cache": Seen("off", "on", with_settings(components.over_http, "prompt_cache")),
    "router.providers.*.send_traceparent": Seen(False, True, with_settings(components.over_http, "send_traceparent")),
    "router.providers.*.headers": Seen({}, {"x-title": "Garden"}, with_settings(components.over_http, "headers")),
    "router.providers.*.query": Seen({}, {"api-version": "2024-10-21"}, with_settings(components.over_http, "query")),
    "router.providers.*.max_concurrency": Seen(1, 64, with_settings(components.in_flight, "max_concurrency")),
    "router.providers.*.requests_per_minute": Seen(1, None, with_settings(components.in_flight, "requests_per_minute")),
    "router.providers.*.tokens_per_minute": Seen(60, None, with_settings(components.in_flight, "tokens_per_minute")),
    "router.providers.*.thinking_tokens": Seen(0, 8_192, with_settings(components.thought, "thinking_tokens")),
    "router.providers.*.timeout_s": Seen(1.0, 1_000.0, with_settings(components.silent, "timeout_s")),
    "router.providers.*.max_response_bytes": Seen(1_024, 1_048_576, with_settings(components.over_http, "max_response_bytes")),
    "router.providers.*.max_retries": Seen(0, 2, components.retried("max_retries")),
    "router.providers.*.backoff_initial_s": Seen(0.5, 5.0, components.retried("backoff_initial_s")),
    "router.providers.*.backoff_max_s": Seen(0.1, 20.0, components.retried("backoff_max_s")),
    "router.providers.*.breaker_failures": Seen(1, 5, components.retried("breaker_failures", calls=3, max_retries=0)),
    "router.providers.*.breaker_reset_s": Seen(
        1.0, 100.0, components.retried("breaker_reset_s", calls=3, pause_s=10.0, max_retries=0, breaker_failures=1)
    ),
    "router.context_window_fallbacks": Seen({}, {"a": ("b",)}, components.too_long),
    "router.prices.*.input_per_million": Seen(1.0, 2.0, with_settings(components.cost, "input_per_million")),
    "router.prices.*.output_per_million": Seen(1.0, 2.0, with_settings(components.cost, "output_per_million")),
    "router.prices.*.cached_per_million": Seen(1.0, None, with_settings(components.cost, "cached_per_million")),
    "router.prices.*.cache_write_per_million": Seen(1.0, None, with_settings(components.cost, "cache_write_per_million")),
    "router.allow_model_calls": Seen(True, False, components.foreign),
    "agents.*.agent_class": Seen("RESIDENT:bo", "RESIDENT:cy", turns.named),
    "agents.*.prompt_dir": Seen(None, "/no/such/prompts", with_settings(turns.asked, "prompt_dir")),
    "agents.*.attention_templates": Seen(None, "/no/such/templates", with_settings(turns.asked, "attention_templates")),
    "agents.*.ho2m_path": agent_place("ho2m_path", "ho2m.jsonl"),
    "agents.*.ho1m_path": agent_place("ho1m_path", "ho1m.jsonl"),
    "agents.*.tool_timeout_s": Seen(1.0, 1_000.0, with_settings(turns.tool_run, "tool_timeout_s", seconds=10.0)),
    "agents.*.reply_reserve_s": Seen(0.0, 10.0, with_settings(turns.tool_run, "reply_reserve_s", **LATE_TOOL)),
    "agents.*.tool_result_max_bytes": Seen(100, 65_536, with_settings(turns.tool_run, "tool_result_max_bytes")),
    "agents.*.tool_limits.*.concurrency": Seen(1, None, with_settings(turns.two_tool_runs, "concurrency")),
    "agents.*.tool_limits.*.rate_per_minute": Seen(1, None, with_settings(turns.two_tool_runs, "rate_per_minute")),
    "agents.*.tool_limits.*.timeout_s": Seen(1.0, 1_000.0, tool_limit("timeout_s", seconds=10.0, tool_timeout_s=500.0)),
    "agents.*.tool_limits.*.max_result_bytes": Seen(100, None, tool_limit("max_result_bytes")),
    "agents.*.client_tools": Seen("allow", "refuse", with_settings(turns.brought_tools, "client_tools")),
    "agents.*.client_tools_trusted": Seen(False, True, with_settings(turns.brought_tools, "client_tools_trusted")),
    "agents.*.approval.mcp_default": Seen("allow", "ask", with_settings(approval.of_a_server, "mcp_default")),
    "agents.*.attention_timeout_ms": Seen(1_000, 1_000_000, lambda _, value: turns.gathered(value)),
    "agents.*.speaker_weight": Seen(
        1.0, 3.0, with_settings(turns.spoken, "speaker_weight", context_budget=120, prompt_layout="block")
    ),
    "agents.*.recent_parts": Seen(0, 1, with_settings(turns.attached, "recent_parts", context_mode="enforce")),
    "agents.*.overlap_policy": Seen("queue", "reject", with_settings(turns.overlapping, "overlap_policy")),
    "agents.*.session_queue": Seen(1, 8, with_settings(turns.overlapping, "session_queue")),
    "agents.*.turn_deadline_s": Seen(1.0, 1_000.0, with_settings(turns.cut_off, "turn_deadline_s")),
    "agents.*.admission_deadline_s": Seen(1.0, 1_000.0, with_settings(turns.kept_waiting, "admission_deadline_s")),
    "agents.*.idle_passivate_s": Seen(1.0, 1_000.0, with_settings(turns.passivated, "idle_passivate_s")),
    "agents.*.ho3_memory_dir": agent_place("ho3_memory_dir", ho3_enabled=True),
    "agents.*.consolidation": Seen("auto", "manual", with_settings(turns.learning, "consolidation")),
    "agents.*.consolidation_deadline_s": Seen(1.0, 1_000.0, with_settings(turns.slow_lesson, "consolidation_deadline_s")),
    "mcp.*.command": Seen(sys.executable, servers.ABSENT, with_settings(servers.started, "command", max_restarts=1)),
    "mcp.*.args": Seen(None, ("-c", "0"), with_settings(servers.started, "args", max_restarts=1)),
    "mcp.*.cwd": Seen(None, "/no/such/folder", with_settings(servers.started, "cwd", max_restarts=1)),
    "mcp.*.env": Seen({}, {"KEY": "env:PATH"}, with_settings(servers.started, "env", max_restarts=1)),
    "mcp.*.url": Seen("/mcp", None, with_settings(servers.reached, "url")),
    "mcp.*.token": Seen(None, "it", with_settings(servers.reached, "token")),
    "mcp.*.headers": Seen({}, {"x-desk": "it"}, with_settings(servers.reached, "headers")),
    "mcp.*.allow": Seen(("*",), ("look",), with_settings(servers.listing, "allow")),
    "mcp.*.trusted": Seen(False, True, with_settings(servers.listing, "trusted")),
    "mcp.*.trust_annotations": Seen(False, True, with_settings(servers.listing, "trust_annotations")),
    "mcp.*.start": Seen("runtime", "first_use", with_settings(servers.waits_for_use, "start")),
    "mcp.*.connect_timeout_s": Seen(0.05, 0.1, with_settings(servers.hangs, "connect_timeout_s")),
    "mcp.*.call_timeout_s": Seen(1.0, 2.0, with_settings(servers.tool_limit, "call_timeout_s")),
    "mcp.*.max_calls": Seen(1, 2, with_settings(servers.at_once, "max_calls")),
    "mcp.*.max_tools": Seen(1, 2, with_settings(servers.listing, "max_tools")),
    "mcp.*.max_definition_bytes": Seen(512, 4_096, with_settings(servers.listing, "max_definition_bytes")),
    "mcp.*.max_result_bytes": Seen(2_048, 4_096, with_settings(servers.large_result, "max_result_bytes")),
    "mcp.*.backoff_max_s": Seen(4.0, 1_000.0, with_settings(servers.fails, "backoff_max_s")),
    "mcp.*.max_restarts": Seen(2, 10, with_settings(servers.fails, "max_restarts")),
}


def test_each_setting_that_decides_nothing_on_record_stands_here() -> None:
    """The others have a value in `tests/replay/mutated/knobs.py` that changes a recorded session."""
    assert sorted(SHOWN) == sorted(path for path, row in KNOBS.items() if isinstance(row, str))


def scene_of(observe: Observer) -> object:
    """The scene that shows a setting; other settings may have the same one, with other values."""
    held = inspect.getclosurevars(observe).nonlocals
    return held.get("observe") or held.get("scene") or observe.__code__


def each_scene_first() -> Iterator[Any]:
    """Each setting. `make test` looks at the first of each scene, `make soak` at all."""
    met = set[object]()
    for path, row in SHOWN.items():
        scene = scene_of(row.observe)
        yield pytest.param(path, marks=[pytest.mark.soak] if scene in met else [])
        met.add(scene)


# The HTTP library leaves its own generators to the garbage collector where a body is not read to its end.
@pytest.mark.filterwarnings("ignore:Async generator 'httpcore2:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator object PoolByteStream")
@pytest.mark.parametrize("path", list(each_scene_first()))
async def test_setting_changes_something_that_a_user_can_see(tmp_path: Path, path: str) -> None:
    row = SHOWN[path]
    seen = []
    for number, value in enumerate((row.one, row.other)):
        root = tmp_path / str(number)
        root.mkdir()
        seen.append(await row.observe(root, value))
    assert seen[0] != seen[1], f"{path}: {row.one!r} and {row.other!r} come to the same"
