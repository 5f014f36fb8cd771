"""Takes the turns of dialogues with a model, as users do, and reads from the record what came of them.

The settings are those that `kitchener init` writes: long-term memory, context `enforce`, sealed ledgers. The first dialogue
goes through `kitchener chat`, the others through `stream_turn`. Two subjects take turns. Then the commands replay and verify
all of it.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from benchmarks.shared.commands import run_command
from kitchener import HO2Supervisor, TextDelta, TextRetracted, TurnCompleted, TurnResult, open_runtime
from kitchener.cli.context.shown_requests import request_lines
from kitchener.records.entries import TurnCompletedPayload, opened, payload_as
from kitchener.records.prompt import RULES_MODEL
from kitchener.replaying import read_prompts
from kitchener.runtime import load_config
from kitchener.runtime.root_layout import open_reader, sealer_of

SUBJECTS = ("ada", "ben")
SETTINGS = {
    "KITCHENER_AGENTS__ADMIN__CONSOLIDATION_DEADLINE_S": "900",
    "KITCHENER_AGENTS__ADMIN__TURN_DEADLINE_S": "900",
    "KITCHENER_AGENTS__ADMIN__MAX_TOKENS": "256",
    "KITCHENER_ROUTER__PROVIDERS__LOCAL__TIMEOUT_S": "600",
}
"""A small machine writes some thirty tokens a second, three if it is busy, and a small model may repeat itself without end."""
COMMANDS = {
    "replay": ("replay", "--all"),
    "verify": ("ledger", "verify"),
    "audit": ("audit", "leaks"),
}
"""What must exit with 0 in the end."""
COMMAND_S = 1800


class DataError(Exception):
    """The dialogues cannot be read; the text says why."""


class Streamed(NamedTuple):
    """What a reader of one stream saw."""

    first_s: float | None
    """Seconds until the first delta; None: there was none."""
    whole_s: float
    retracted: int
    """How often text was taken back."""
    is_reply: bool
    """Whether the deltas that were left add up to the reply; an apology has none."""


class Plan(NamedTuple):
    """What to run, and where."""

    folder: Path
    """Settings and ledgers; what was there is removed."""
    base_url: str
    model: str
    dialogues: Sequence[Sequence[str]]
    classify: str = "rules"


def read_dialogues(path: Path, turns: int) -> list[list[str]]:
    """The user's messages of the first dialogues, `turns` in all.

    Each line is a dialogue: `{"turns": [{"speaker": "user", "text": …}, …]}`.

    Raises:
        DataError: the file cannot be read, is of another form or has fewer messages
    """
    found, left = list[list[str]](), turns
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            said = [str(turn["text"]) for turn in json.loads(line)["turns"] if turn["speaker"] == "user"][:left]
            found += [said] if said else []
            left -= len(said)
    except OSError as error:
        raise DataError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{str(path)!r} does not hold a dialogue a line: {error!r}") from None
    if left:
        raise DataError(f"{str(path)!r} has {turns - left} messages of a user, fewer than --turns {turns}")
    return found


async def kitchener(
    plan: Plan, *arguments: str, typed: Sequence[str] = (), cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command of the command line with the plan's settings. Its exit code is the caller's concern."""
    command = [sys.executable, "-m", "kitchener", *arguments]
    with anyio.fail_after(COMMAND_S):
        return await run_command(command, given="".join(f"{line}\n" for line in typed).encode(), env=environment(plan), cwd=cwd)


def environment(plan: Plan) -> dict[str, str]:
    """The environment of a command with the plan's settings."""
    return {**os.environ, **SETTINGS, "KITCHENER_AGENTS__ADMIN__CLASSIFY": plan.classify}


async def carry_out(plan: Plan) -> dict[str, Any]:
    """Runs the plan and returns the report."""
    shutil.rmtree(plan.folder, ignore_errors=True)
    began = anyio.current_time()
    await kitchener(plan, "init", str(plan.folder), "--provider", plan.base_url, "--model", plan.model)
    settings = str(plan.folder / "kitchener.toml")
    first, *others = plan.dialogues
    chat = await kitchener(plan, "chat", "--config", settings, "--subject", SUBJECTS[0], typed=first)
    streamed = await _stream(plan, settings, others)
    results = await _recorded(plan, settings)
    report = {**figures(results, streamed), "requests": await _write_requests(plan, settings, results)}
    report["chat"] = {"turns": len(first), "exit": chat.returncode}
    report["seconds"] = round(anyio.current_time() - began, 1)
    for name, command in COMMANDS.items():
        done = await kitchener(plan, *command, "--config", settings)
        report[name] = {"exit": done.returncode, "told": (done.stderr or done.stdout).decode().strip().splitlines()}
    differs = report["streams_unlike_reply"] + report["requests"]["missing"]
    is_complete = len(results) == sum(map(len, plan.dialogues)) and report["answered"] > 0
    report["ok"] = is_complete and not differs and not any(report[name]["exit"] for name in COMMANDS)
    return report


async def _stream(plan: Plan, settings: str, dialogues: Sequence[Sequence[str]]) -> list[Streamed]:
    """The turns of these dialogues, one after the other; each dialogue is a session."""
    seen = list[Streamed]()
    async with open_runtime(load_config(settings, environ=environment(plan)).config) as runtime:
        supervisor = runtime.supervisor("ADMIN")
        for subject, dialogue in zip(cycle(SUBJECTS[::-1]), dialogues, strict=False):
            session_id = await supervisor.start_session(subject_id=subject)
            for message in dialogue:
                seen.append(await _watch(supervisor, message, session_id))
                print(f"\r{len(seen)} turns streamed", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    return seen


async def _watch(supervisor: HO2Supervisor, message: str, session_id: str) -> Streamed:
    """One streamed turn."""
    began, first, retracted, text, is_reply = anyio.current_time(), None, 0, "", False
    async for update in supervisor.stream_turn(message, session_id=session_id):
        match update:
            case TextDelta():
                first = first or anyio.current_time() - began
                text += update.text
            case TextRetracted():
                retracted, text = retracted + 1, ""
            case TurnCompleted():
                is_reply = text == update.result.response or (not text and update.result.error is not None)
    return Streamed(first, anyio.current_time() - began, retracted, is_reply)


async def _recorded(plan: Plan, settings: str) -> list[TurnResult]:
    """The results of all turns on record."""
    config = load_config(settings, environ=environment(plan)).config
    async with open_reader(config, "ADMIN", "ho2m", sealer=sealer_of(config)) as reader:
        completed = [each.payload async for each in reader.read(entry_type="TURN_COMPLETED")]
    return [TurnResult.from_payload(payload_as(TurnCompletedPayload, each)) for each in completed]


async def _write_requests(plan: Plan, settings: str, results: Sequence[TurnResult]) -> dict[str, int]:
    """Writes what the model was sent and what it answered to `requests.txt`; counts the requests that the record gives back."""
    found = Counter(rebuilt=0, missing=0)
    config = load_config(settings, environ=environment(plan)).config
    async with await anyio.open_file(plan.folder / "requests.txt", "w", encoding="utf-8") as file:
        for result in results:
            prompts = await read_prompts(result.turn_id, config=config)
            rebuilt = sum(each.is_verified is True for each in prompts.calls)
            answered = sum(each.answer is not None for each in prompts.calls)
            found.update(rebuilt=rebuilt, missing=len(prompts.missing) + answered - rebuilt)
            for each in prompts.calls:
                if each.answer is not None and each.answer["model_id"] == RULES_MODEL:
                    continue
                response = opened(each.answer["response"]) if each.answer is not None else None
                answer = response["text"] if response is not None else "(none)"
                title = f"===== {result.turn_id}, {each.request.wo_type}, {each.usage or 'not counted'}"
                await file.write("\n".join([title, *request_lines(each.request), "--- answer", answer, ""]))
            await file.write(f"--- reply of {result.turn_id}, {result.error or 'no error'}\n{result.response}\n\n")
    return dict(found)


def figures(results: Sequence[TurnResult], streamed: Sequence[Streamed]) -> dict[str, Any]:
    """The counts of a run, and its latencies in seconds."""
    orders = [order for result in results for order in result.wo_chain_summary]
    costs = [result.cost_summary for result in results]
    return {
        "turns": len(results),
        "answered": sum(result.error is None for result in results),
        "apologies": dict(Counter(result.error.kind for result in results if result.error is not None)),
        "failed_steps": dict(Counter(order["wo_type"] for order in orders if order["state"] == "failed")),
        "retracted": sum(each.retracted for each in streamed),
        "streams_unlike_reply": sum(not each.is_reply for each in streamed),
        "model_calls": sum(cost["llm_calls"] for cost in costs),
        "tokens_in": sum(cost["input_tokens"] for cost in costs),
        "tokens_cached": sum(order["cost"].get("cached_tokens", 0) for order in orders),
        "tokens_out": sum(cost["output_tokens"] for cost in costs),
        "first_delta_s": spread([each.first_s for each in streamed if each.first_s is not None]),
        "whole_s": spread([each.whole_s for each in streamed]),
    }


def spread(values: Sequence[float]) -> list[float]:
    """Least, median and greatest; empty if there are none."""
    return [round(each, 2) for each in (min(values), statistics.median(values), max(values))] if values else []


def table(report: Mapping[str, Any]) -> Iterator[str]:
    """The report for a reader, a row a line."""
    tokens = f"{report['tokens_in']:,} in, of them {report['tokens_cached']:,} cached; {report['tokens_out']:,} out"
    rows = {
        "turns": f"{report['turns']}, {report['chat']['turns']} of them through `kitchener chat`, in {report['seconds']} s",
        "answered": str(report["answered"]),
        "apologies": _counts(report["apologies"]),
        "failed steps": _counts(report["failed_steps"]),
        "streams": f"text taken back {report['retracted']} times, {report['streams_unlike_reply']} unlike the reply",
        "model calls": f"{report['model_calls']}; requests rebuilt from the record: {_counts(report['requests'])}",
        "tokens": tokens,
        "first delta": _times(report["first_delta_s"]),
        "whole turn": _times(report["whole_s"]),
        **{name: _said(report[name]) for name in COMMANDS},
    }
    yield from (f"{name:<16} {value}" for name, value in rows.items())


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _times(values: Sequence[float]) -> str:
    return "{} / {} / {} s (least, median, greatest)".format(*values) if values else "none"


def _said(command: Mapping[str, Any]) -> str:
    """The exit code; of a failure also what the command said last."""
    return f"exit {command['exit']}" + (f": {' '.join(command['told'][-3:])}" if command["exit"] else "")
