"""`kitchener approval`: lists, shows and answers tool calls that wait for a person. `list` and `show` take no lock.

If a process has the root open, that process records the answer and runs the turn. Explained in `docs/approval.md`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import anyio
import orjson
from cyclopts import App, Parameter

from kitchener.cli.exits import NEGATIVE, OK
from kitchener.cli.options import NO_OPTIONS, JsonFlag, Options, SessionChoice
from kitchener.cli.terminal.account import account_name
from kitchener.cli.terminal.output import print_json, print_table, print_text, say
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.errors import CallerError, UnknownApproval
from kitchener.ids import split_approval_id
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.recorded_approvals import arguments_text, details, read_requests, read_with_nested, row
from kitchener.inspection.shown_text import one_line, short_time
from kitchener.inspection.turn_views.turn_approvals import answer_words
from kitchener.plain_names import counted
from kitchener.records.entries import ApprovalScope
from kitchener.runtime.admin.operations import AnswerApproval, ApprovalOutcome
from kitchener.runtime.administration import administer
from kitchener.runtime.queries.approval_list import ApprovalInfo

app = App(name="approval", help="Allow or refuse tool calls that wait for a person.")

ApprovalArgument = Annotated[
    str, Parameter(name="APPROVAL", help="An approval id, such as WO-SES-0a1b2c3d-002.1; or its work order, for all its calls.")
]
MessageOption = Annotated[str | None, Parameter(name="--message", help="What to tell the model about the decision.")]
ByOption = Annotated[
    str | None, Parameter(name="--by", help="Who decides, for the record. Default: the account that runs the command.")
]
_COLUMNS = ("approval_id", "status", "tool", "arguments", "rule", "expires")
_ARGUMENTS_WIDTH: Final = 60
_RULES: Final[Mapping[str, str]] = {
    "tool": "the author of the tool, or the tool itself",
    "default": "the default for functions",
    "mcp_default": "the default for tools of MCP servers",
    "after_untrusted": "the turn had read text of an untrusted source",
    "client": "nobody: the client that brought the tool runs it",
}
"""Texts for reasons to wait that are not rules of the settings."""


@app.command(name="list")
def list_(
    session: Annotated[
        SessionChoice,
        Parameter(help="Only requests of this session, or `last`. Default: of all sessions, or of those of `--agent`."),
    ] = None,
    *,
    options: Options = NO_OPTIONS,
    all_: Annotated[bool, Parameter(name="--all", negative="", help="Also those that were answered or have expired.")] = False,
    json: JsonFlag = False,
) -> int:
    """List the tool calls that wait for a person, oldest first.

    Works while a server runs.

    With a session or an agent, also those that wait in agents that it asked.

    For example:

        kitchener approval list
        kitchener approval list last --all --json
    """
    found = anyio.run(_listed, options, session)
    shown = [each for each in found if not each.is_of_client and (all_ or each.is_pending)]
    of_clients = [each for each in found if each.is_of_client and each.is_pending]
    if json:
        print_json([row(each) for each in shown])
    elif shown:
        print_table(_COLUMNS, map(_table_row, shown))
    else:
        print_text("no tool call is waiting for a person")
    if of_clients:
        say(f"kitchener: {_of_clients(of_clients)}")
    return OK


def _of_clients(calls: Sequence[ApprovalInfo]) -> str:
    """Notes about waiting calls that are not in the list."""
    wait = counted(len(calls), "call waits for its client", "calls wait for their clients")
    return f"{wait}, which nobody approves: kitchener session show {calls[-1].session_id}"


@app.command
def show(approval: ApprovalArgument, /, *, options: Options = NO_OPTIONS, json: JsonFlag = False) -> int:
    """Show what a request asks for, which rule asks, and who answered what.

    Works while a server runs.

    For example:

        kitchener approval show WO-SES-0a1b2c3d-002.1
    """
    session_id, wo_id, wanted = split_approval_id(approval)
    found = [each for each in anyio.run(_found, options, session_id) if each.wo_id == wo_id]
    found = [each for each in found if wanted in (None, each.approval_id)]
    if not found:
        raise UnknownApproval(approval)
    if json:
        print_json([details(each) for each in found])
    for each in found if not json else ():
        print_text("\n".join(_lines(each)))
    return OK


def _table_row(request: ApprovalInfo) -> dict[str, object]:
    arguments = one_line(arguments_text(request), _ARGUMENTS_WIDTH)
    return {**row(request), "arguments": arguments, "expires": short_time(request.request["expires_at"])}


def _lines(request: ApprovalInfo) -> Iterator[str]:
    """A request as text."""
    asked, rule = request.request, request.request["rule"]
    yield f"{request.approval_id}  {request.status}"
    yield f"  call      {asked['tool']} {arguments_text(request)}"
    yield f"  asked     {short_time(request.requested_at)} in {request.turn_id}"
    yield f"  rule      {_RULES.get(rule, rule)}"
    known = details(request)
    if "message" in known:
        yield f"  question  {known['message']}"
    if "response_schema" in known:
        yield f"  wanted    {orjson.dumps(known['response_schema']).decode()}"
    yield f"  expires   {short_time(asked['expires_at'])}"
    yield f"  answer    {answer_words(request)}"


@app.command
def approve(
    approval: ApprovalArgument,
    /,
    *,
    options: Options = NO_OPTIONS,
    arguments: Annotated[str | None, Parameter(help="JSON object: arguments to use in place of the model's.")] = None,
    answer: Annotated[str | None, Parameter(help="JSON value: the answer to the tool's own question.")] = None,
    scope: Annotated[ApprovalScope, Parameter(help="`session`: also later calls of the tool in this session.")] = "once",
    message: MessageOption = None,
    by: ByOption = None,
    json: JsonFlag = False,
) -> int:
    """Approve a waiting tool call. The turn continues, and its reply is shown.

    The same answer given again shows the same reply. Exits with 1 if the request is unknown or has another answer. While a
    server runs, the turn continues there.

    For example:

        kitchener approval approve WO-SES-0a1b2c3d-002.1
        kitchener approval approve WO-SES-0a1b2c3d-002.1 --arguments '{"path": "b.txt"}' --by ada
        kitchener approval approve WO-SES-0a1b2c3d-002 --scope session
    """
    edited = _json_of("--arguments", arguments)
    if edited is not None and not isinstance(edited, Mapping):
        raise CallerError("--arguments: expected a JSON object")
    given = {"arguments": edited, "answer": _json_of("--answer", answer), "scope": scope}
    return _answer(options, approval, {"decision": "approved", "message": message, **given}, by, is_json=json)


@app.command
def deny(
    approval: ApprovalArgument,
    /,
    *,
    options: Options = NO_OPTIONS,
    message: MessageOption = None,
    by: ByOption = None,
    json: JsonFlag = False,
) -> int:
    """Deny a waiting tool call. The model reads this, and its reply is shown.

    While a server runs, the turn continues there.

    For example:

        kitchener approval deny WO-SES-0a1b2c3d-002.1 --message "it is still needed"
    """
    return _answer(options, approval, {"decision": "denied", "message": message}, by, is_json=json)


def _answer(options: Options, approval: str, given: Mapping[str, Any], by: str | None, *, is_json: bool) -> int:
    session_id, _, _ = split_approval_id(approval)

    async def work() -> int:
        loaded = options.load_checked()
        agent_class = await options.class_of(session_id, LedgerPaths(loaded.config))
        operation = AnswerApproval(
            agent_class=agent_class, approval_id=approval, answered_by=account_name() if by is None else by, **given
        )
        return _print_outcome(await administer(loaded, operation), is_json=is_json)

    return run_to_end(work)


def _print_outcome(done: ApprovalOutcome, *, is_json: bool) -> int:
    if is_json:
        print_json(done.model_dump(mode="json"))
    elif done.response is None:
        print_text(f"{done.approval_id} is {done.decision}; other calls of its work order still wait")
    else:
        print_text(done.response)
    if done.error is not None:
        say(f"kitchener: {done.turn_id}: {done.error}")
    return OK if done.error is None else NEGATIVE


def _json_of(option: str, text: str | None) -> object:
    if text is None:
        return None
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise CallerError(f"{option}: expected JSON: {error}") from None


async def _listed(options: Options, session_id: str | None) -> list[ApprovalInfo]:
    """The requests for a list, oldest first."""
    paths = options.paths()
    if session_id is None and options.named_agent is None:
        classes = sorted({options.first_agent, *paths.agent_classes()})
        found = [each for agent_class in classes for each in await read_requests(paths, agent_class)]
        return sorted(found, key=lambda each: (each.requested_at, each.approval_id))
    agent_class = await options.class_of(session_id, paths)
    return await read_with_nested(paths, agent_class, session_id)


async def _found(options: Options, session_id: str) -> list[ApprovalInfo]:
    paths = options.paths()
    return await read_requests(paths, await options.class_of(session_id, paths), session_id)
