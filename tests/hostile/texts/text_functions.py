"""Finds the functions of the library that scan foreign text, from their source: what is measured must be complete.

A function scans a text if one of its `str` or `bytes` parameters, or what it makes of one, is looped over, searched or cut
inside a loop, looked at in a `while`, or given to an expression.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import kitchener

BOUNDED: Final[Mapping[str, str]] = {
    "agent_class artifact_id entity_id entry_type intent_id key_id ledger_id model_id preferred provider_id session session_id"
    " signal_id subject_id tool_id turn turn_id wo_id": "ids and types: short where they enter, and compared, never searched",
    "ho2m key namespace": "names of what is looked up, made of ids",
    "as_of_ts timestamp turn_ts": "times that a ledger or a clock gave",
    "config directory path root": "where the operator keeps files",
    "public_key": "64 digits",
    "config_hash source_hash": "hashes, which are looked up",
}
"""Parameters that are texts and no foreign ones, by name, and why."""
_NOT_FOREIGN: Final = frozenset(" ".join(BOUNDED).split())
NOT_MEASURED: Final[Mapping[str, str]] = {
    "kitchener.actors.similarity.embedding_comparer.EmbeddingComparer.compare": "goes through numbers of texts",
    "kitchener.gateway.embedding_providers.hashing._vector": "goes through a text once, three characters at a time",
    "kitchener.gateway.embedding_providers.remote._vectors": "goes through the list of an answer that was parsed in one go",
    "kitchener.actors.authority.ranking.TurnRanking._placed": "goes through turns; their words are measured",
    "kitchener.actors.authority.ranking.TurnRanking.grade": "goes through turns; their words are measured",
    "kitchener.actors.authority.ranking.TurnRanking.rank": "goes through turns; their words are measured",
    "kitchener.actors.admission.content_checks.ContentChecks.checked": "hands the message on; checks of it are measured",
    "kitchener.actors.approval.approvals.Approvals.answer": "compares ids; splitting one is measured",
    "kitchener.actors.executor.contracts._contract_file": "a file that the operator wrote",
    "kitchener.actors.policy_identity.definition_hashes": "reads the library's own source",
    "kitchener.actors.sessions.session_context.SessionContext.search_text": "goes through turns; the words are measured",
    "kitchener.actors.admission.idempotency.IdempotencyKeys.use": "waits for a turn, and compares the message once",
    "kitchener.actors.sessions.recalled_results.SessionResults.keep": "goes through entries; the words are measured",
    "kitchener.actors.tools.named_tools._load": "names of tools in the settings",
    "kitchener.cli.chat.chat._ChatLoop._stream": "the pieces of the reply, each added once",
    "kitchener.inspection.turn_views.rebuilt_projection.rebuild": "goes through items",
    "kitchener.cli.ledger.ledger._entries": "goes through ledgers",
    "kitchener.cli.memory.tune._values": "what the operator types",
    "kitchener.cli.terminal.typed_lines._from_terminal": "the prompt is the library's own",
    "kitchener.cli.ledger.ledger._number_of": "one expression, which is measured",
    "kitchener.config.request_fields.value_problem": "one expression, which is measured",
    "kitchener.config.serve._host_name": "one expression, which is measured",
    "kitchener.config.settings_parser._tables": "goes through the library's own settings",
    "kitchener.context.fold.lifecycle._cycle": "goes from id to id",
    "kitchener.context.lexical.postings.LexicalTurns._note_date": "a date of ten characters",
    "kitchener.context.projection.projection.Projector._pack_head": "goes through items",
    "kitchener.context.projection.projection.Projector._ranked": "goes through items",
    "kitchener.gateway.providers.proxies._is_excluded": "goes through names that the environment sets, once",
    "kitchener.gateway.providers.chat_completions.context_window._objects": "goes through the list of an answer once",
    "kitchener.gateway.providers.offline._tool_result": "one expression, which is measured",
    "kitchener.gateway.providers.chat_completions.transport._duration_s": "one expression, which is measured",
    "kitchener.gateway.providers.scripted.ScriptedProvider.replies": "what a program's author writes",
    "kitchener.gateway.providers.scripted._response": "what a program's author writes",
    "kitchener.lanes.mailbox.Mailbox.refuse": "goes through messages of a lane, which the text names",
    "kitchener.lanes.mailbox.Mailbox.stream": "waits for a message of a lane, which the text names",
    "kitchener.lanes.worker_lane.WorkerLane.next": "goes through messages for an actor, which the text names",
    "kitchener.ledger.disk.file_ops.write_all": "moves on in one buffer without a copy",
    "kitchener.ledger.disk.manifests._parsed": "a file of which so many bytes are read at most",
    "kitchener.lazy_names.homes_in": "reads the library's own stubs",
    "kitchener.ledger.index.tail._locations": "rows of a fixed width",
    "kitchener.mcp.connection_state.ConnectionState.cause_now": "joins at most twenty lines of a bounded length, once",
    "kitchener.mcp.protocol_errors._of_library": "compares the beginning of a text with a dozen others",
    "kitchener.memory.overlay_log.OverlayOperations.quarantine": "goes through a subject's overlays",
    "kitchener.replaying.report._shown_diff": "splits a text into lines once, and shows forty of them",
    "kitchener.records.tools.client_tools._unbounded": "goes through tools; reading them is measured",
    "kitchener.runtime.portable.folder._manifest": "a file of which so many bytes are read at most",
    "kitchener.replaying.reruns._common": "goes through two texts once, side by side",
    "kitchener.runtime.queries.spent_since._sessions_since": "compares times that the ledger gave",
    "kitchener.sealing.key_files.KeyFiles.destroy": "one expression, which is measured",
    "kitchener.serve.access.request_subject.RequestSubjects._signed_for": "a library reads the token",
    "kitchener.small_files.write_private": "moves on in one buffer without a copy",
    "kitchener.telemetry.observed_turns.ObservedRunner._end": "goes through fields of a result",
    "kitchener.runtime.synchronous.SyncRuntime._answering": "goes through agent classes; splitting the id is measured",
    "kitchener.sealing.key_files._translated": "a path of the operator's system",
    "kitchener.serve.request_reader.RequestReader._parse": "takes a piece of a bounded length",
    "kitchener.serve.request_reader.RequestReader._read": "hands on pieces of a bounded length, each once",
}
"""Functions that the rule finds and no scan measures, and why."""
SOURCE: Final = Path(kitchener.__file__).parent
TEXT: Final = frozenset(("str", "bytes", "bytearray", "memoryview", "ReadBytes"))
EXPRESSION_METHODS: Final = frozenset(("search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split"))
TEXT_METHODS: Final = frozenset(
    ("find", "index", "rfind", "rindex", "split", "rsplit", "splitlines", "partition", "rpartition", "count", "replace")
) | frozenset(("startswith", "endswith", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "join"))
LOOPS: Final = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def text_functions() -> Iterator[str]:
    """The full names of the functions that scan a foreign text."""
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(("kitchener", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for name, function in functions(ast.parse(path.read_text("utf-8"))):
            if is_scan(function):
                yield f"{module}.{name}"


def functions(parent: ast.AST, before: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Each function below a node, with its name as `__qualname__` has it."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, FUNCTIONS):
            yield before + node.name, node
            yield from functions(node, f"{before}{node.name}.<locals>.")
        else:
            yield from functions(node, f"{before}{node.name}." if isinstance(node, ast.ClassDef) else before)


def is_scan(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function scans a foreign text."""
    texts = {
        each.arg
        for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        if each.annotation is not None and each.arg not in _NOT_FOREIGN and _is_text(each.annotation)
    }
    if not texts:
        return False
    nodes = list(ast.walk(function))
    before = -1
    while len(texts) > before:  # until no name is added
        before = len(texts)
        for node in nodes:
            texts |= _made_of(node, texts)
    return any(_scans(node, texts) for node in nodes)


def _is_text(annotation: ast.expr) -> bool:
    if isinstance(annotation, ast.BinOp):
        return _is_text(annotation.left) or _is_text(annotation.right)
    return isinstance(annotation, ast.Name) and annotation.id in TEXT


def _made_of(node: ast.AST, texts: set[str]) -> set[str]:
    """The names that a node binds to something made of a text."""
    value: ast.AST | None
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        targets, value = [node.target], node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        targets, value = [node.target], node.iter
    else:
        return set()
    return set().union(*(_names(each) for each in targets)) if value is not None and _has(value, texts) else set()


def _names(node: ast.AST) -> set[str]:
    return {ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute)} - {"self"}


def _has(node: ast.AST, texts: set[str]) -> bool:
    """Whether a text occurs in an expression, except as what somebody else is asked for and awaited."""
    if isinstance(node, ast.Await):
        return False
    if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in texts:
        return True
    return any(_has(each, texts) for each in ast.iter_child_nodes(node))


def _scans(node: ast.AST, texts: set[str]) -> bool:
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and _has(node.iter, texts):
        return True
    if isinstance(node, ast.While) and _has(node, texts):
        return True
    if isinstance(node, LOOPS) and any(_cuts(each, texts) for each in ast.walk(node)):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in EXPRESSION_METHODS:
        return node.func.attr != "split" and any(_has(each, texts) for each in node.args)
    return False


def _cuts(node: ast.AST, texts: set[str]) -> bool:
    """Whether it copies or searches a text, which inside a loop is done once for each round."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in TEXT_METHODS and _has(node.func.value, texts)
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Add) and _has(node, texts)
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and _has(node.value, texts)
