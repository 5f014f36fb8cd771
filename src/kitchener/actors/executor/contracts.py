"""Turns the text of a prompt contract into a compiled contract, which renders the messages of a call and checks its answer.

A contract names a pack, the limits of a call, and the input and output schemas. `packs.py` compiles the pack's text. This
module reads no file, and knows no model and no ledger. Explained in `docs/prompts.md`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import lru_cache, partial
from itertools import cycle
from typing import Annotated, ClassVar, Final, Literal, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kitchener.actors.executor.packs import Emit, PackTemplate, fence, plain
from kitchener.actors.executor.prompt_files import json_object
from kitchener.canonical import NOTHING, Opening, canonical_bytes, canonical_digest
from kitchener.config.shown import described, described_key
from kitchener.criteria import MAX_CRITERIA, criterion_problem
from kitchener.errors import PromptError
from kitchener.records.entries import SpokenRole
from kitchener.records.events import LAST_UNBOUNDED, POLICY_VERSION
from kitchener.records.prompt import Message
from kitchener.schemas.compiled_schemas import stranger_schema
from kitchener.schemas.json_schema import JsonSchema

MAX_ASKED_SCHEMAS: Final = 64
"""Most contracts with a caller's schema that are cached for one contract."""
MAX_COMPILED_FILES: Final = 64
"""Most packs, and most contracts, that a process caches compiled. Another runtime or replay need not compile them again."""
_OF_CALLER: Final = "the schema of `output`"
Placed = tuple[object, str]
"""A value of a prompt, and its text in the prompt."""


class CallLimits(BaseModel):
    """Limits of one model call under a contract."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_tokens: Annotated[int, Field(ge=1)]
    """Largest answer, tokens; a work order may set another one."""
    temperature: Annotated[float, Field(ge=0, le=2)]
    """Sampling temperature, 0 to 2; a work order may set another one."""


class ContractFile(BaseModel):
    """The content of a contract's file."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    contract_id: str
    prompt_pack_id: str
    boundary: CallLimits
    input_schema: dict[str, object]
    output: Literal["text", "object"] = "object"
    output_schema: dict[str, object] | None = None
    acceptance: list[str] = Field(default=[], max_length=MAX_CRITERIA)
    """Criteria of a reply under this contract."""


class ContractWithSchemas(NamedTuple):
    """The content of a contract's file, with its schemas compiled. Immutable, because runtimes share it."""

    spec: ContractFile
    input: JsonSchema
    output: JsonSchema | None
    """The schema of the answer; None: the answer is text."""
    output_digest: str | None


class CompiledContract:
    """A contract with its compiled schemas and pack, so that a call parses and compiles nothing.

    Attributes:
        contract_id: `PRC-…`
        prompt_pack_version: pack id, `@` and the first 8 hex digits of the pack's hash
        boundary: limits of one call
        input_schema: the schema of the variables
        output_schema: the schema of the answer, an object; None: the answer is text
        is_asked: whether `output_schema` is that of the turn's caller; False: it is the contract's own
    """

    def __init__(self, contract: ContractWithSchemas, pack: PackTemplate, pack_hash: str) -> None:
        spec = contract.spec
        self.contract_id = spec.contract_id
        self.prompt_pack_version = f"{spec.prompt_pack_id}@{pack_hash.removeprefix('sha256:')[:8]}"
        self.boundary = spec.boundary
        self.input_schema: Mapping[str, object] = spec.input_schema
        self.output_schema: Mapping[str, object] | None = spec.output_schema
        self._input, self._output, self._schema_digest = contract.input, contract.output, contract.output_digest
        self.is_asked = False
        self._asked: OrderedDict[tuple[str, bool], CompiledContract] = OrderedDict()
        self._pack = pack
        self._hash_head = canonical_bytes([self.contract_id, self.prompt_pack_version])[:-1] + b","
        self._system: _System | None = None

    def asking(self, output_schema: Mapping[str, object] | None, policy_version: int = POLICY_VERSION) -> "CompiledContract":
        """Returns this contract with a caller's schema in place of its own output schema; None: this contract.

        Args:
            output_schema: the schema
            policy_version: version of the rules that the turn follows. Up to version 8, checks of answers are not bounded

        Raises:
            PromptError: the schema is invalid, or refers to another document
        """
        if output_schema is None or output_schema is self.output_schema:
            return self
        schema_digest, is_bounded = canonical_digest(output_schema, at="output_schema"), policy_version > LAST_UNBOUNDED
        found = self._asked.get((schema_digest, is_bounded))
        if found is None:
            found = copy(self)
            found.output_schema, found.is_asked, found._schema_digest = output_schema, True, schema_digest
            found._system = None
            found._output = None if is_bounded else _compiled(output_schema, _OF_CALLER)
            if len(self._asked) >= MAX_ASKED_SCHEMAS:
                self._asked.popitem(last=False)
            self._asked[schema_digest, is_bounded] = found
        return found

    def input_problem(self, variables: Mapping[str, object]) -> str | None:
        """Returns how `variables` violates the input schema, or None."""
        return self._input.problem(variables)

    def output_problem(self, output: object) -> str | None:
        """Returns how `output` violates the output schema, or None. If the answer is text, there is no schema to violate."""
        if self._output is not None:
            return self._output.problem(output)
        if self.output_schema is None or self._schema_digest is None:
            return None
        try:  # from the cache of all callers' schemas, whose memory is bounded
            return stranger_schema(self.output_schema, self._schema_digest).problem(output)
        except ValueError as error:  # recorded before there were limits, and a turn continues with it
            return f"{_OF_CALLER}: expected a JSON schema that stands by itself, found: {error}"

    def render(self, variables: Mapping[str, object], turn_id: str, session_id: str = "") -> tuple[Message, ...]:
        """Returns the messages for these variables: system, chat messages of earlier turns, user. Equal arguments give equal
        bytes.

        Args:
            variables: the values
            turn_id: the turn; delimiters of data are derived from it
            session_id: the session; delimiters are derived from it instead if the pack shows chat messages

        Raises:
            PromptError: the pack uses a variable that is missing
            EntryRefused: a value has no JSON form
        """
        pack = self._pack
        # The variables of the instruction part seldom change, so the last message is cached.
        system, instructions, has_tools = self._system, variables.get("instructions"), variables.get("has_tools")
        if system is None or system.instructions != instructions or system.has_tools != has_tools:
            message = Message("system", pack.instruction.render(variables, plain))
            encoded = canonical_bytes(message.as_mapping())
            opening = Opening(self._hash_head + b"[" + encoded)
            cut = Opening(opening.data.removesuffix(_SYSTEM_END))
            self._system = system = _System(instructions, has_tools, message, opening, cut)
        emit = partial(fence, pack.fence_seed(turn_id, session_id))
        message = Message("user", pack.render_user(variables, emit, plain))
        stable = pack.render_system(variables, emit)
        first = Message("system", f"{system.message.content}\n\n{stable}") if stable else system.message
        said = self.history_in(variables)
        return (first, *map(Message, cycle(_ROLES), said), message) if said else (first, message)

    def history_in(self, variables: Mapping[str, object]) -> Sequence[str]:
        """The chat messages of earlier turns that `render` shows, alternately of the user and the agent."""
        context = variables.get("assembled_context") if self.shows_history else None
        return context.get("history") or () if isinstance(context, Mapping) else ()

    @property
    def shows_history(self) -> bool:
        """Whether the pack has a place for chat messages of earlier turns."""
        return self._pack.stable is not None

    def values_in(
        self, variables: Mapping[str, object], turn_id: str, session_id: str = ""
    ) -> tuple[list[Placed], list[Placed]]:
        """Returns the values that `render` puts into the system message and into the user message, in order, with their texts.

        The arguments are those of `render`.

        Raises:
            PromptError: the pack uses a variable that is missing, or a value has no JSON form
        """
        found: tuple[list[Placed], list[Placed]] = [], []

        def noting(emit: Emit, into: list[Placed]) -> Emit:
            def note(value: object) -> str:
                into.append((value, emit(value)))
                return into[-1][1]

            return note

        pack = self._pack
        emit = partial(fence, pack.fence_seed(turn_id, session_id))
        pack.instruction.render(variables, noting(plain, found[0]))
        pack.render_system(variables, noting(emit, found[0]))
        pack.render_user(variables, noting(emit, found[1]), noting(plain, found[1]))
        return found

    def request_bytes(
        self,
        messages: Iterable[Message],
        *,
        tools_digest: str,
        model_id: str | None,
        temperature: float,
        max_tokens: int,
    ) -> bytes:
        """Returns the canonical JSON of everything that determines an answer. A ledger hashes it (`content_digest`).

        The array has contract id, pack version, messages, digest of the offered tools, digest of the output schema (null:
        the answer is text), requested model, temperature and `max_tokens`. It excludes the deadline, ids and streaming.
        """
        opening, rest = self.request_parts(
            tuple(messages), tools_digest=tools_digest, model_id=model_id, temperature=temperature, max_tokens=max_tokens
        )
        return opening.data + rest

    def request_parts(
        self,
        messages: Sequence[Message],
        *,
        tools_digest: str,
        model_id: str | None,
        temperature: float,
        max_tokens: int,
    ) -> tuple[Opening, bytes]:
        """Returns `request_bytes` in two parts: the opening that requests under this contract share, and the rest."""
        tail = _hash_tail(tools_digest, self._schema_digest, model_id, temperature, max_tokens)
        system = self._system
        if system is not None and messages:  # the system message is long, and equal in nearly every request
            first, others = messages[0], b"," * (len(messages) > 1) + _joined(messages[1:]) + b"]" + tail
            if first is system.message:
                return system.opening, others
            if first.content.startswith(system.message.content):
                rest = canonical_bytes(first.content[len(system.message.content) :])[1:-1]
                return system.cut, rest + _SYSTEM_END + others
        return NOTHING, self._hash_head + b"[" + _joined(messages) + b"]" + tail


class _System(NamedTuple):
    """The cached system message of a contract for one value of each variable of its instruction part."""

    instructions: object
    has_tools: object
    message: Message
    opening: Opening
    """The start of a request's bytes, up to and including this message."""
    cut: Opening
    """As `opening`, but only up to the end of this message's text, which data that seldom changes may follow."""


_SYSTEM_END: Final = b'","role":"system"}'
_ROLES: Final[tuple[SpokenRole, ...]] = ("user", "assistant")


def _joined(messages: Sequence[Message]) -> bytes:
    """The canonical JSON of messages, joined by commas."""
    # Canonical: the keys are in order, and a text has one form.
    parts = [
        {"content": each[1], "role": each[0]} if each[2:] == _ONLY_TEXT else orjson.Fragment(canonical_bytes(each.as_mapping()))
        for each in messages
    ]
    try:
        return orjson.dumps(parts)[1:-1]
    except TypeError:  # a text without a UTF-8 form, which this names in its error
        return b",".join([canonical_bytes(each.as_mapping()) for each in messages])


_ONLY_TEXT: Final = Message("user", "")[2:]


@lru_cache(maxsize=MAX_COMPILED_FILES)
def contract_of(contract_id: str, text: str, file: str) -> ContractWithSchemas:
    """Returns the contract in the text of a file, with its schemas compiled. Raises PromptError, which names the file."""
    spec = _contract_file(contract_id, text, file)
    schema = spec.output_schema
    return ContractWithSchemas(
        spec,
        _compiled(spec.input_schema, f"{file}: input_schema"),
        _compiled(schema, f"{file}: output_schema") if schema is not None else None,
        canonical_digest(schema, at="output_schema") if schema is not None else None,
    )


def _contract_file(contract_id: str, text: str, file: str) -> ContractFile:
    raw = json_object(text.encode(), file)
    try:
        spec = ContractFile.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(described_key(str(part)) for part in first["loc"])
        raise PromptError(f"{file}: {where}: expected: {first['msg']}; found {described(first['input'])}") from None
    if (spec.output == "text") == (spec.output_schema is not None):
        found = "both" if spec.output_schema is not None else "neither"
        raise PromptError(f'{file}: output: expected `output_schema` or `"output": "text"`, found {found}')
    if spec.contract_id != contract_id:
        raise PromptError(f"{file}: contract_id: expected {contract_id!r}, as the file is called, found {spec.contract_id!r}")
    for each in spec.acceptance:
        if (problem := criterion_problem(each, by_model=True)) is not None:
            raise PromptError(f"{file}: acceptance: {problem}; found {described(each)}")
    return spec


def _compiled(schema: Mapping[str, object], where: str) -> JsonSchema:
    try:
        return JsonSchema(schema)
    except ValueError as error:
        raise PromptError(f"{where}: expected a JSON schema that stands by itself, found: {error}") from error


@lru_cache(maxsize=1_024)  # saves 3 % of the bytecodes of a turn in `benchmarks.steps`
def _hash_tail(tools: str, schema: str | None, model_id: str | None, temperature: float, max_tokens: int) -> bytes:
    return b"," + canonical_bytes([tools, schema, model_id, temperature, max_tokens])[1:]
