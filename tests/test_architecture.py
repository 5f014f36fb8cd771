"""Rules about the source text that neither ruff, mypy nor import-linter holds.

The import contracts stand in `pyproject.toml` and are checked by `lint-imports`.
"""

import ast
import dataclasses
import importlib
import importlib.metadata
import inspect
import itertools
import os
import re
import subprocess
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import kitchener
from kitchener import errors
from kitchener.actors.policy_identity import POLICY_MODULES
from kitchener.actors.sessions.session_state import SessionState
from kitchener.records import events
from kitchener.telemetry import names as span_names
from tests.records.entries.shapes import shape_of
from tests.shared.dotted_names import DOTTED_NAME, FILES_OF_A_USER, resolves

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
MAX_METHODS = 20
MAX_ANY = 150
"""The word `Any` in the source, outside import lines: values of an unknown form, which a type checker does not follow."""
MANY_METHODS = {"HO2Supervisor"}
"""The one public client: what an application may ask of an agent stands in one place."""
MAX_WITH_INHERITED = 25
MANY_INHERITED = {
    "LedgerClient": "the reads, which `LedgerReader` shares, and the writes of one ledger",
    "HO3Memory": "READ, which `MemoryReader` shares, and LOG of one memory, 24 public methods in all",
    "SignalOperations": "the same, over any two ledgers",
    "OverlayOperations": "the half of it that learned lines need",
    "RecordedLearning": "the same memory, as a replay has it",
    "LexicalIndex": "the index of turns, whose postings have a module of their own; 3 public methods",
}
"""Classes that have more methods with those that they inherit, and why they are one object for their users."""

SAME_NAMES = {
    "approval": "the command group, and the settings",
    "approvals": "what takes a person's answers, and the payloads of the entries about them",
    "chat_completions": "OpenAI's format, as Kitchener calls it and as it serves it",
    "config": "the command group, and the settings",
    "content": "the command group, and what takes the images and files of messages",
    "context": "the command group, what decides, and the payloads of its entries",
    "execution": "the executions of the executor, and the payloads of their entries",
    "gateway": "the command group, and the gateway",
    "intents": "the rules about intents, and the payloads of their entries",
    "ledger": "the command group, and the ledgers",
    "mcp": "the command group, and the servers",
    "memory": "the command group, the settings, the memory, and the payloads of its entries",
    "portable": "sessions in a folder, which commands and the runtime export and import",
    "reader": "reads of ledgers, and reads of a memory, without a lock",
    "serve": "the command, the settings, and the server",
    "sessions": "the active sessions, and the payloads of the entries about them",
    "sources": "what shapes requests: its entries, and their payloads",
    "spending": "the settings, and the sums that commands show",
    "tools": "tools as values, those that are functions, and those of servers and other agent classes",
    "turn": "a turn as it runs, and the values that a turn takes and returns",
}
"""Names of files and folders that stand in several places, each with the one meaning that it has in all of them."""

PUBLIC_STUB = ROOT / "src" / "kitchener" / "__init__.pyi"
PUBLIC_GROUPS = {
    "the start of every program, and what it gives": "open_runtime open_sync Runtime SyncRuntime HO2Supervisor HO3Memory",
    "settings, which a program may build instead of a file": "RuntimeConfig HO2Config",
    "a tool, what it may learn about its call, and its question to a person": "tool ToolContext ConfirmationRequired",
    "an image or a file of a message": "ImagePart FilePart",
    "what a turn gives, what a session was, and its replay": "TurnResult TurnError Exchange SessionInfo replay_session",
    "the updates of a stream": "TurnUpdate TextDelta TextRetracted ToolStarted ToolProgress ToolRan ClientCallRequested"
    " TurnCompleted WorkOrderPlanned WorkOrderFinished",
    "a tool that the caller runs, and what it put out": "ClientTool ClientOutput",
    "an error to report: any, of settings, of a call, of a record": "KitchenerError ConfigError CallerError LedgerError",
    "an error that another session or a later message answers": "UnknownSession SessionEnded SessionBusy OutcomeUnknown",
    "an error of an answer to a call that waits: no such call, or too late": "UnknownApproval ApprovalAnswered ApprovalVoid",
    "an error of a turn that was not answered: send again, or not": "Overloaded TurnTimeout TurnReplaced",
    "an error after which the process begins anew": "RuntimeClosed ActorStopped",
}
PUBLIC_NAMES = {name for names in PUBLIC_GROUPS.values() for name in names.split()}
"""What `kitchener` exports, and why an application needs it. A name comes or goes here in the same change, with a line in the
changelog. All others are under their packages."""
OF_A_START = {"PromptError", "SealingError", "SigningError", "ToolError"}
"""Errors without a family at the top: a program that starts or administers reports them like any other `KitchenerError`."""

TESTED_ELSEWHERE = {
    "actors/approval": "a request is asked and answered through a whole runtime: tests/acceptance/approval",
    "records/tools": "as functions: tests/actors/tools; of servers: tests/mcp; what waits: tests/acceptance/approval",
    "ledger/bundles": "with both programs that verify them: tests/verifier",
    "inspection": "through the commands that print it: tests/cli",
    "inspection/turn_views": "through the commands that print it: tests/cli/context, and the server: tests/serve/native",
    "serve/answer_models": "every answer of the server is compared with its description: tests/serve/shared/described.py",
    "replaying": "tests/replay",
    "replaying/on_record": "tests/replay",
}
"""Folders of the source whose tests stand in a folder of another name, and where."""

UNLISTED_DIRECTORIES = {".git", ".venv", "__pycache__", "build", "dist", "node_modules"}

# Put together at run time, so that this file does not contain them.
FORBIDDEN = {
    "the host of a package registry": re.compile(
        "|".join(
            re.escape(".".join(parts))
            for parts in [
                ("pypi", "org"),
                ("pypi", "python", "org"),
                ("pythonhosted", "org"),
                ("npmjs", "org"),
                ("npmjs", "com"),
                ("yarnpkg", "com"),
                ("crates", "io"),
            ]
        )
    ),
    "a path of somebody's machine": re.compile(r"/(?<![\w.})]/)" + r"(?:work|opt/pypi)" + r"/"),
    "a path out of the repository": re.compile(re.escape("../") + r"(?:shared|work)\b"),
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def repository_files() -> Iterator[Path]:
    """Yield what is or could be committed; without git, everything but environments, caches and build results."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        for directory, names, files in os.walk(ROOT):
            names[:] = [n for n in names if n not in UNLISTED_DIRECTORIES and not n.endswith(("_cache", ".egg-info"))]
            yield from (Path(directory, file) for file in files)
    else:
        paths = (ROOT / os.fsdecode(name) for name in listing.split(b"\0") if name)
        yield from (path for path in paths if path.is_file())


@dataclass
class Parsed:
    """What these tests look at in a module."""

    functions: dict[str, int] = field(default_factory=dict)
    """The lines of each function, by its first line and its name."""
    of_module: set[str] = field(default_factory=set)
    """The functions of the module itself, without a leading underscore."""
    classes: dict[str, set[str]] = field(default_factory=dict)
    """The methods of each class."""
    bases: dict[str, list[str]] = field(default_factory=dict)
    """The classes that each class names as its bases."""
    texts: dict[str, str] = field(default_factory=dict)
    """The constants of the module that are a text, without a leading underscore."""
    types: list[str] = field(default_factory=list)
    """The classes and type aliases, without a leading underscore."""
    docstrings: list[str] = field(default_factory=list)
    described: list["Described"] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    """The names in the code."""
    unmarked_cuts: list[str] = field(default_factory=list)
    """The lines that quote the beginning of a value, without a sign that it was cut."""


class Described(NamedTuple):
    """A docstring of a class, a function, an attribute or a value of a module."""

    owner: str
    """The class around it; "": none."""
    name: str
    text: str
    is_value: bool


def described_in(body: list[ast.stmt], owner: str = "") -> Iterator[Described]:
    """The docstrings in a class, a function or a module, and in what these define."""
    for each in body:
        if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(each):
                yield Described(owner, each.name, text, is_value=False)
            yield from described_in(each.body, each.name if isinstance(each, ast.ClassDef) else owner)
    for before, after in itertools.pairwise(body):
        match before, after:
            case (
                ast.AnnAssign(target=target) | ast.Assign(targets=[target]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if isinstance(target, ast.Name | ast.Attribute):
                yield Described(owner, getattr(target, "attr", getattr(target, "id", "")), text, is_value=True)


NO_NODES = {int, str, type(None), ast.Load, ast.Store, ast.Del}
"""Types of most attributes of a node: places, names, and how a name is used."""


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a tree but the contexts of names, as `ast.walk` gives them in half of the time."""
    found = [tree]
    for node in found:  # which grows meanwhile
        yield node
        for each in vars(node).values():
            kind = type(each)
            if kind is list:
                found += [part for part in each if isinstance(part, ast.AST)]
            elif kind not in NO_NODES and isinstance(each, ast.AST):
                found.append(each)


def nodes_where(*words: str) -> Iterator[tuple[Path, ast.AST]]:
    """The nodes of all modules in whose text one of the words stands: to parse and walk all modules takes seconds."""
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if any(word in text for word in words):
            for node in nodes_of(ast.parse(text)):
                yield path, node


def is_looked_at(node: ast.AST) -> bool:
    """Whether `parsed` can find something in a node: one half of all."""
    return isinstance(node, ast.Name | ast.Attribute | ast.alias | ast.stmt | ast.FormattedValue | ast.Call)


@cache
def parsed(path: Path) -> Parsed:
    """Cached, because several tests read all modules. A syntax tree is too large to be kept."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = Parsed(described=[*described_in(tree.body)])
    functions = (each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    found.of_module = {name for name in functions if not name.startswith("_")}
    for node in filter(is_looked_at, nodes_of(tree)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.ClassDef(name=name):
                found.names.add(name)
            case ast.Expr(value=ast.Constant(value=str(text))):
                found.docstrings.append(text)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text)))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text)))
            ) if name.isupper():
                found.texts[name.lstrip("_")] = text
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.functions[f"{node.lineno} {node.name}"] = (node.end_lineno or 0) - node.lineno + 1
            case ast.Assign(targets=[ast.Name(id=name)]) if name.lstrip("_")[:1].isupper() and not name.isupper():
                found.types.append(name.lstrip("_"))
            case (
                ast.FormattedValue(conversion=114, value=ast.Subscript(slice=ast.Slice()))
                | ast.FormattedValue(conversion=114, format_spec=ast.JoinedStr(values=[ast.Constant(), *_]))
                | ast.Call(func=ast.Name(id="repr"), args=[ast.Subscript(slice=ast.Slice())])
            ):
                found.unmarked_cuts.append(f"{node.lineno}: {ast.unparse(node)}")
        if isinstance(node, ast.ClassDef):
            found.types.append(node.name.lstrip("_"))
            found.classes[node.name] = methods_of(node)
            found.bases[node.name] = [ast.unparse(each).partition("[")[0].rpartition(".")[2] for each in node.bases]
    return found


def modules(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.py") if path.name != "__init__.py"]


def test_every_public_name_resolves_and_is_listed_once_and_in_order() -> None:
    names = list(kitchener.__all__)
    assert [name for name in names if not hasattr(kitchener, name)] == []
    # The order in which ruff keeps `__all__`: constants, then classes, then functions.
    assert names == sorted(set(names), key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def test_the_public_surface_is_the_pinned_one() -> None:
    assert sorted(kitchener.__all__) == sorted(PUBLIC_NAMES)


def test_type_checkers_are_told_the_same_names_as_programs() -> None:
    """`__init__.pyi` has the names; `__init__.py` reads them there, and imports each when it is first asked for."""
    stub = ast.parse(PUBLIC_STUB.read_text(encoding="utf-8"))
    told = {name.name: each.module for each in stub.body if isinstance(each, ast.ImportFrom) for name in each.names}
    assert sorted(told) == sorted(PUBLIC_NAMES)
    for name, module in told.items():
        assert module is not None
        assert getattr(kitchener, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        kitchener.Nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("stub", sorted((ROOT / "src").rglob("*.pyi")), ids=lambda path: path.parent.name)
def test_a_star_import_gives_type_checkers_the_same_names_as_programs(stub: Path) -> None:
    """They read the list in the stub, where `list[str]` says that it is empty."""
    package = importlib.import_module(".".join(stub.parent.relative_to(ROOT / "src").parts))
    (listed,) = (
        ast.literal_eval(each.value)
        for each in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__"
    )
    assert listed == package.__all__


def raised_by(documented: object) -> set[str]:
    """The errors in the section `Raises:` of a docstring."""
    text = inspect.getdoc(documented) or ""
    section = re.search(r"^Raises:\n((?: {4}.*\n?)+)", text, re.MULTILINE)
    named = re.findall(r"^ {4}([\w, ]+):", section[1], re.MULTILINE) if section else []
    return {each.strip() for names in named for each in names.split(",")}


def test_every_error_that_an_exported_name_says_it_raises_has_its_family_at_the_top() -> None:
    """A caller catches it, or the exported class that it is a kind of, without knowing `kitchener.errors`."""
    lost = set()
    for name in kitchener.__all__:
        exported = getattr(kitchener, name)
        methods = [each for key, each in vars(exported).items() if key[0] != "_"] if inspect.isclass(exported) else []
        for each in (exported, *methods):
            for raised in (found for found in raised_by(each) if hasattr(errors, found)):
                families = {base.__name__ for base in getattr(errors, raised).__mro__} - {"KitchenerError"}
                lost |= {raised} if families.isdisjoint(PUBLIC_NAMES) else set()
    assert lost == OF_A_START


def test_an_application_meets_few_names() -> None:
    """Each more is one more to look up: what a single caller in a hundred needs is under its package."""
    assert len(PUBLIC_NAMES) < 47
    assert sum(len(names.split()) for names in PUBLIC_GROUPS.values()) == len(PUBLIC_NAMES)


def test_a_name_that_has_moved_still_works_and_tells_its_new_place() -> None:
    moved = {name: package for package, names in kitchener._MOVED_TO.items() for name in names.split()}  # type: ignore[attr-defined]
    assert len(moved) == 59
    assert moved.keys().isdisjoint(kitchener.__all__)
    for name, package in moved.items():
        with pytest.warns(DeprecationWarning, match=f"write `from {package} import {name}`"):
            found = getattr(kitchener, name)
        assert found is getattr(importlib.import_module(package), name)
        assert name in getattr(importlib.import_module(package), "__all__", vars(errors))


MODULES_OF_TOP = {path.stem for path in (ROOT / "src" / "kitchener").iterdir()}


def test_no_file_of_the_repository_imports_a_name_from_where_it_was() -> None:
    """The warning is not an error in the tests of other programs; here it would be, if a file did."""
    top = set(kitchener.__all__) | {"__version__"}
    found = []
    for path in repository_files():
        if path.suffix not in (".py", ".md") or path.name == "CHANGELOG.md":
            continue
        text = path.read_text(encoding="utf-8")
        for names in re.findall(r"^\s*from kitchener import (?:\(([^)]*)\)|([^\n(]+))$", text, re.MULTILINE):
            listed = {each.split(" as ")[0].split("#")[0].strip() for each in "".join(names).split(",")} - {""}
            found += [f"{relative(path)}: {each}" for each in sorted(listed - top - MODULES_OF_TOP)]
    assert found == []


INTERNAL_PAGES = {"docs/actors.md", "docs/attention.md"}
"""They explain the inside of a package."""


def test_pages_and_examples_import_only_public_names() -> None:
    """Public is what `kitchener` or one of its packages exports; modules of the top level have no other place."""
    found = []
    for path in repository_files():
        name = relative(path)
        if (
            not name.startswith(("README.md", "docs/", "examples/"))
            or path.suffix not in (".py", ".md")
            or name in INTERNAL_PAGES
        ):
            continue
        text = path.read_text(encoding="utf-8")
        for module, names in re.findall(r"^\s*from (kitchener[\w.]*) import ([^\n(]+|\([^)]*\))", text, re.MULTILINE):
            public = getattr(importlib.import_module(module), "__all__", None)
            listed = {each.strip().partition(" ")[0] for each in names.strip("()").split(",")} - {""}
            if module.count(".") > 1 or (public is not None and not listed <= {*public, *MODULES_OF_TOP}):
                found.append(f"{name}: {module}: {sorted(listed)}")
    assert found == []


def test_the_package_tells_its_version() -> None:
    assert kitchener.__version__ == importlib.metadata.version("kitchener")


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_of_the_repository_names(what: str) -> None:
    pattern = FORBIDDEN[what]
    found = [
        f"{relative(path)}:{number}: {line.strip()[:100]}"
        for path in repository_files()
        if pattern.search(text := path.read_text(encoding="utf-8", errors="replace"))  # hardly any file has lines to look for
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == [], f"these lines name {what}"


def test_the_repository_holds_no_keys_and_no_indexes_of_a_ledger() -> None:
    """An early program left its root, with its keys, in the working directory, and it was committed with the rest."""
    assert [relative(path) for path in repository_files() if path.suffix in {".key", ".keys", ".sqlite"}] == []


def test_property_tests_that_count_their_examples_draw_more_in_a_soak() -> None:
    """A fixed number is the same in both runs; `tests/shared/property_examples.py` has the two."""
    tests = (path for path in repository_files() if path.suffix == ".py" and path.is_relative_to(ROOT / "tests"))
    fixed = [relative(path) for path in tests if re.search(r"max_examples=\d", path.read_text(encoding="utf-8"))]
    assert fixed == ["tests/conftest.py"]


def test_source_files_stay_short_enough_to_read_in_one_go() -> None:
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {path: length for path, length in lengths.items() if length >= MAX_FILE_LINES} == {}


def test_functions_fit_on_a_screen() -> None:
    lengths = {f"{relative(path)}:{function}": lines for path in SOURCES for function, lines in parsed(path).functions.items()}
    assert {where: length for where, length in lengths.items() if length >= MAX_FUNCTION_LINES} == {}


def test_a_quoted_value_that_was_cut_says_so() -> None:
    """`quoted` ends it with `…`. The modules of the policy keep their texts, because their hash is on record."""
    policy = {ROOT / "src" / f"{name.replace('.', '/')}.py" for name in POLICY_MODULES}
    found = [f"{relative(path)}:{each}" for path in SOURCES if path not in policy for each in parsed(path).unmarked_cuts]
    assert found == []


LITTLE_WORDS = "a an the of to in on for with by from its this that it s is are and or as one each return"
WITHOUT_MEANING = (
    f"{LITTLE_WORDS} all anything both everything here only there whole json type field fields line list name number object"
    " thing value reader text word words ho1 ho1m ho2 ho2m ho3 ho3m"
)
"""Words that tell nothing about what has the docstring: its type, or the tier whose code it is."""
ENDINGS = re.compile("(?:ed|es|s|d|e|ing|ion)$")


def words(text: str) -> frozenset[str]:
    """The words of a name or a sentence without their endings. Numbers count, and code counts as it stands."""
    code, spaced = re.findall("`[^`]*`", text), re.sub("(?<=[a-z])(?=[A-Z])", " ", re.sub("`[^`]*`|_", " ", text)).lower()
    found = {ENDINGS.sub("", each) for each in re.findall("ho[123]m?|[a-z]+|[0-9]+", spaced)} - {""}
    return frozenset(found | {*code})


def new_words(described: Described) -> frozenset[str]:
    """The words of a docstring that are not in its name. `[ledger]` is not new for a field `ledger`."""
    known = words(described.name) | words(described.owner) | words(WITHOUT_MEANING)
    return frozenset(each for each in words(described.text) - known if each[0] != "`" or words(each.strip("`")) - known)


def test_no_docstring_only_repeats_the_name() -> None:
    """It says what the name does not, such as a unit, a bound or an error; else none is needed."""
    found = [
        f"{relative(path)}: {each.owner} {each.name}: {each.text}"
        for path in SOURCES
        for each in parsed(path).described
        if not new_words(each)
    ]
    assert found == []


def test_no_docstring_is_a_single_word() -> None:
    """ "The sums.", "None." or "The reply." leaves a reader with the question of what it means. A term in code is enough."""
    found = [
        f"{relative(path)}: {each.name}: {each.text}"
        for path in SOURCES
        for each in parsed(path).described
        if "`" not in each.text and len(words(each.text) - words(LITTLE_WORDS)) < 2
    ]
    assert found == []


def test_no_docstring_of_a_class_or_function_is_only_a_name_in_backticks() -> None:
    """ "`INTENT_CLOSED`" says which entry a payload belongs to, and not what the entry records."""
    found = [
        f"{relative(path)}: {each.name}: {each.text}"
        for path in SOURCES
        for each in parsed(path).described
        if not each.is_value and re.fullmatch(r"`[^`]*`\.?", each.text)
    ]
    assert found == []


def test_the_layers_are_drawn_as_they_are_enforced() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["type"] == "layers")
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert page.partition("## Layers")[2].partition("```text\n")[2].partition("```")[0].splitlines() == layers


def test_classes_have_few_methods() -> None:
    classes = [each for path in SOURCES for each in parsed(path).classes.items()]
    assert {name for name, methods in classes if len(methods) > MAX_METHODS} == MANY_METHODS


def test_classes_inherit_few_methods() -> None:
    """A class that was cut in two along its bases is as large as before."""
    own, bases = dict[str, set[str]](), dict[str, list[str]]()
    for path in SOURCES:
        own |= parsed(path).classes
        bases |= parsed(path).bases

    def all_of(name: str) -> set[str]:
        return own.get(name, set()).union(*[all_of(base) for base in bases.get(name, ()) if base != name])

    assert {name for name in own if len(all_of(name)) > MAX_WITH_INHERITED} == MANY_INHERITED.keys()


OVERRIDE_PRIVATE = {
    "src/kitchener/replaying/on_record/before_import.py: _ImportedReader._view": "a reader of a part of a ledger",
}
"""Methods that override a private one of another package, and why."""


def test_classes_override_no_private_method_of_another_package() -> None:
    """A private method may change without a look at other packages; what is meant to be overridden has a public name."""
    homes = {name: (path, methods) for path in SOURCES for name, methods in parsed(path).classes.items()}
    package = ROOT / "src" / "kitchener"
    found = [
        f"{relative(path)}: {owner}.{name}"
        for path in SOURCES
        for owner, bases in parsed(path).bases.items()
        for base in bases
        if (home := homes.get(base)) is not None
        if home[0].relative_to(package).parts[0] != path.relative_to(package).parts[0]
        for name in parsed(path).classes[owner] & home[1]
        if name.startswith("_") and not name.startswith("__")
    ]
    assert set(found) == OVERRIDE_PRIVATE.keys()


def methods_of(node: ast.ClassDef) -> set[str]:
    return {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


STARTS_IN_SHARED_GROUPS = {
    "src/kitchener/cancellation.py": (1, "`start_apart`, the one way: keeps errors of the task from the others"),
    "src/kitchener/lanes/mailbox.py": (1, "a worker, which gives the errors of its handler to the asker"),
    "src/kitchener/ledger/write/commit_group.py": (2, "the rounds of ledgers: their failure is everybody's"),
    "src/kitchener/mcp/connection.py": (1, "the group of one connection, entered on the stack of that connection"),
    "src/kitchener/runtime/agents/agent.py": (1, "the ledgers of an agent class, without which the runtime cannot go on"),
    "src/kitchener/serve/event_stream.py": (1, "the group of one request"),
}
"""Modules that start a task in a task group of somebody else: in how many functions, and why its errors may reach the others in
the group."""


def test_tasks_are_started_in_groups_of_others_only_by_the_helper_that_keeps_their_errors() -> None:
    """Else what one user's code raises while it is cancelled ends the tasks of all."""
    modules = ((path, node) for path, node in nodes_where("start_soon") if isinstance(node, ast.Module))
    found = {relative(path): len({*starts_in_shared_groups(module)}) for path, module in modules}
    allowed = {path: functions for path, (functions, _) in STARTS_IN_SHARED_GROUPS.items()}
    assert {path: functions for path, functions in found.items() if functions} == allowed


def starts_in_shared_groups(node: ast.AST, within: str = "", own: frozenset[str] = frozenset()) -> Iterator[str]:
    """The functions that call `start_soon` of a task group that neither they nor a function around them has opened."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from starts_in_shared_groups(each, each.name, own | groups_opened_in(each))
            continue
        if isinstance(each, ast.Attribute) and each.attr == "start_soon" and ast.unparse(each.value) not in own:
            yield within
        yield from starts_in_shared_groups(each, within, own)


def groups_opened_in(function: ast.AST) -> frozenset[str]:
    items = [item for each in ast.walk(function) if isinstance(each, ast.AsyncWith) for item in each.items]
    opened = [each for each in items if ast.unparse(each.context_expr) == "anyio.create_task_group()"]
    return frozenset(ast.unparse(each.optional_vars) for each in opened if each.optional_vars is not None)


ASKS_WHOSE = {"failed_alone", "is_own_failure", "ends_caller", "is_interrupt"}
HANDLES_ALL = {
    "src/kitchener/actors/tools/concurrent_calls.py: kept": "passes its errors to the task that started it",
    "src/kitchener/actors/tools/tool_job.py: run_async": "`_finish` has asked before",
    "src/kitchener/runtime/runtime.py: open_runtime": "`explained` asks whose a `RuntimeError` is, and a group is raised",
}
"""Coroutines that catch everything and need not ask whose it is, and why."""


def test_coroutines_that_catch_everything_ask_whose_the_exception_is() -> None:
    """It may be the cancellation of the caller, or an error that hides it. Else they raise it again."""
    found = {
        f"{relative(path)}: {function.name}"
        for path, function in nodes_where("BaseException", "except:")
        if isinstance(function, ast.AsyncFunctionDef)
        for handler in handlers_of(function)
        if "BaseException" in ast.unparse(handler.type or ast.Name("BaseException"))
        and not isinstance(handler.body[-1], ast.Raise)
        and not {each.id for each in ast.walk(handler) if isinstance(each, ast.Name)} & ASKS_WHOSE
    }
    assert found == HANDLES_ALL.keys()


def test_no_context_manager_that_is_a_generator_swallows_an_error_of_its_block() -> None:
    """On CPython 3.12.1 and 3.13.0 its frames form a cycle with the error: write a class, as for `ended_by`."""
    found = {
        f"{relative(path)}: {function.name}"
        for path, function in nodes_where("contextmanager")
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and any("contextmanager" in ast.unparse(each) for each in function.decorator_list)
        for block in ast.walk(function)
        if isinstance(block, ast.Try) and any(isinstance(each, ast.Yield) for part in block.body for each in ast.walk(part))
        for handler in block.handlers
        if not isinstance(handler.body[-1], ast.Raise)
    }
    # They raise it when they have closed what they opened.
    assert found == {
        "src/kitchener/lanes/mailbox.py: open",
        "src/kitchener/runtime/runtime.py: open_runtime",
        "src/kitchener/serve/application.py: open_server",
    }


ASKS_OTHERWISE = {
    "src/kitchener/actors/attention/templates.py": "its own files, too, which need not be files of the system",
    "src/kitchener/actors/executor/prompt_files.py": "the same",
    "src/kitchener/actors/policy_identity.py": "files of the package, which need not be files of the system",
    "src/kitchener/gateway/embedding_providers/static.py": "files of a package",
}


def test_whether_a_file_is_there_is_asked_so_that_a_missing_permission_is_an_error() -> None:
    """From Python 3.14 on, the methods of `Path` say no then, and an unreadable key would pass for an erased one."""
    asked = {"exists", "is_file", "is_dir"}
    found = {
        relative(path)
        for path, each in nodes_where(*asked)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in asked and not each.args
    }
    assert found == ASKS_OTHERWISE.keys()


def handlers_of(function: ast.AST) -> Iterator[ast.ExceptHandler]:
    """The handlers in a function, without those of functions in it."""
    for each in ast.iter_child_nodes(function):
        if isinstance(each, ast.ExceptHandler):
            yield each
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from handlers_of(each)


CHANGE_A_SESSION = {
    "src/kitchener/actors/sessions/active_session.py: __init__": "the lengths that the settings give to the histories",
    "src/kitchener/actors/sessions/active_session.py: next_wo_number": "a number is taken before its entry is written",
    "src/kitchener/actors/sessions/active_session.py: add_turn": "a turn that is never written",
    "src/kitchener/actors/sessions/directory.py": "numbers of entries that a crash has lost here",
    "src/kitchener/replaying/reruns.py": "turns that are left out have numbers too",
}
"""Functions, or modules, that change the state of a session without an entry, and why."""


def test_only_entries_change_the_state_of_a_session() -> None:
    """`append` and `write_all` fold what they have written; nobody repeats by hand what an entry says."""
    fields = {each.name for each in dataclasses.fields(SessionState)}
    folds = {f"src/kitchener/actors/sessions/{name}.py" for name in ("session_state", "pending_approvals")}
    found = {
        f"{relative(path)}: {function.name}"
        for path, function in nodes_where(*(f"state.{each}" for each in fields))
        if relative(path) not in folds
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for changed in changed_in(function)
        if re.search(rf"\bstate\.({'|'.join(fields)})\b", changed)
    }
    assert as_listed(found, CHANGE_A_SESSION) == CHANGE_A_SESSION.keys()


def as_listed(found: set[str], listed: dict[str, str]) -> set[str]:
    """The functions that were found, each as its module where the list has the whole module."""
    return {module if (module := each.partition(": ")[0]) in listed else each for each in found}


def test_entries_whose_shape_has_changed_are_read_in_the_present_one() -> None:
    """`read_as` upgrades them. What reads the payload as it is stored misreads, or refuses, what an older version wrote."""
    changed = {shape_of("", entry_type).__name__ for entry_type in events.VERSIONS}
    found = [
        f"{relative(path)}: {ast.unparse(call)}"
        for path, call in nodes_where("payload_as")
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "payload_as"
        if ast.unparse(call.args[0]) in changed and isinstance(call.args[1], ast.Attribute)
    ]
    assert found == []


READ_UNTYPED = {
    "actors/authority/session_thread.py: apply": "plans and ends of turns alike, whose `intent_id` the shadow fills in",
    "cli/audit/audit.py": "entries of every type, which the audit does not trust to have their form",
    "cli/audit/owners.py: owned": "the same",
    "context/fold/context_events.py": "policy code, which reads what any program may have written, field by field",
    "context/intents/transitions.py": "policy code, whose own events have a typed payload",
    "context/projection/record.py": "policy code",
    "ledger/bundles/bundle_check.py": "entries of a bundle from somebody else, which need not have their form",
    "ledger/format/lines.py": "a ledger finds entries by session and knows nothing else of their payloads",
    "memory/overlay_log.py": "signal ids in entries of every type of the memory",
    "memory/subject_cache.py": "index keys, of entries of every type",
    "memory/subject_memory.py": "policy code",
    "records/events.py": "what gives payloads their shape",
    "records/index_keys.py": "index keys, of entries of every type",
    "records/upgrades.py": "what gives payloads their shape",
    "replaying/signatures.py: difference": "what a signature covers, which need not have its form",
    "runtime/portable/folder.py": "entries of a folder from another root, which need not have their form",
    "runtime/portable/importer.py": "the same",
    "runtime/portable/source_file.py: named_by": "the same",
    "sealing/sealer.py": "the fields of `SEALED_FIELDS`, of entries of every type",
}
"""Functions, or modules, that read a stored payload by the names of its fields without the shape of its type, and why."""

RAW = {"Payload", "Mapping[str, object]", "Mapping[str, Any]", "dict[str, object]", "dict[str, Any]"}


def test_payloads_are_read_through_the_shape_of_their_type() -> None:
    """So that a type checker knows each field: `payload_as(TurnStartedPayload, entry.payload)["turn_ts"]`, and for the fields
    that all types share `read_common(entry)`. A field whose name is a variable comes from a table of fields."""
    found = {
        f"{path.relative_to(ROOT / 'src' / 'kitchener').as_posix()}: {function.name}"
        for path, function in nodes_where("payload", "current")  # a payload without a shape comes from one of these words
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and any(untyped_reads(function))
    }
    assert as_listed(found, READ_UNTYPED) == READ_UNTYPED.keys()


def test_outputs_are_read_through_the_shape_of_their_type() -> None:
    """`wo.output_as(Classification)` gives the fields of a completed work order's output their types."""
    found = {
        relative(path)
        for path, each in nodes_where("output_result")
        if isinstance(each, ast.Attribute) and each.attr == "output_result"
    }
    assert found == {"src/kitchener/records/work_order.py"}


def untyped_reads(function: ast.AST) -> Iterator[str]:
    """What a function reads by a literal name from a payload that has no shape."""
    nodes = [*nodes_of(function)]
    raw = set(raw_names(nodes))
    for each in nodes:
        match each:
            case (
                ast.Subscript(value=payload, slice=ast.Constant(value=str()), ctx=ast.Load())
                | ast.Call(func=ast.Attribute(value=payload, attr="get"), args=[ast.Constant(value=str()), *_])
                | ast.Compare(left=ast.Constant(value=str()), ops=[ast.In() | ast.NotIn()], comparators=[payload])
            ) if ast.unparse(payload) in raw or is_raw(payload):
                yield ast.unparse(each)


def raw_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names of payloads without a shape: arguments called `payload`, and what is assigned from an entry as it is."""
    for each in nodes:
        match each:
            case ast.arg(arg="payload", annotation=ast.expr() as annotation) if ast.unparse(annotation) in RAW:
                yield "payload"
            case ast.Assign(targets=[target], value=value):
                yield from (name for name, given in assigned(target, value) if is_raw(given))


def assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Each name that an assignment gives a value, with the value."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for name, given in zip(target.elts, value.elts, strict=False):
            yield ast.unparse(name), given
    else:
        yield ast.unparse(target), value


def is_raw(value: ast.expr) -> bool:
    """Whether a value is a payload as a ledger gives it back."""
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2] in ("read_payload", "current")
    named = (getattr(each, "attr", getattr(each, "value", "")) for each in nodes_of(value))
    return "payload" in named and ast.unparse(value).endswith((".payload", "['payload']"))  # text takes long to make


CHANGING = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popleft", "remove", "update"}


def changed_in(function: ast.AST) -> Iterator[str]:
    """What a function assigns to, deletes, or calls a changing method of."""
    for each in nodes_of(function):
        match each:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                yield from map(ast.unparse, targets)
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                yield ast.unparse(target)
            case ast.Call(func=ast.Attribute(attr=name, value=changed)) if name in CHANGING:
                yield ast.unparse(changed)


def test_few_values_of_the_source_have_any_type() -> None:
    """A value of type `Any` is not checked. One that is only handed on is an `object`."""
    found = Counter[str]()
    for path in SOURCES:
        lines = (
            line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith(("from ", "import "))
        )
        found[relative(path)] = sum(len(re.findall(r"\bAny\b", line)) for line in lines)
    assert found.total() < MAX_ANY, f"{found.total()} times `Any`; most in {found.most_common(5)}"


def test_no_two_classes_or_type_aliases_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for name in parsed(path).types:
            places.setdefault(name, []).append(relative(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_modules_and_folders_of_one_name_are_listed_with_what_they_have_in_common() -> None:
    """A folder may have the name of its one main module: `actors/turn/turn.py`."""
    places: dict[str, set[str]] = {}
    for path in SOURCES:
        place = path.parent if path.name == "__init__.py" else path.with_suffix("")
        home = place.parent if place.parent.name == place.name else place
        places.setdefault(place.name, set()).add(relative(home))
    assert {name for name, found in places.items() if len(found) > 1} - {"__init__"} == set(SAME_NAMES)


SAME_FUNCTION_NAMES = {
    "fold": "the state of a session from its events, for its turns and for context decisions; another name is another policy",
    "write_manifest": "of a directory of prompts, and of one of attention templates",
}
"""Names of functions that several modules define, each with what they have in common, or why it stays."""


def test_functions_of_one_name_are_listed_with_what_they_have_in_common() -> None:
    """Those of `cli` are commands, and have the names that their groups give them."""
    places = Counter(name for path in SOURCES if "cli" not in path.relative_to(ROOT).parts for name in parsed(path).of_module)
    assert {name for name, found in places.items() if found > 1} == set(SAME_FUNCTION_NAMES)


SAME_TEXTS = {
    "FENCE": "Markdown's",
    "MANIFEST": "folders of assets and exports have a file of this name, with hashes of different files",
}
"""Constants that several modules define with one name and one text, with the reason."""


def test_a_word_that_several_modules_use_is_defined_in_one() -> None:
    places: dict[tuple[str, str], list[str]] = {}
    for path in SOURCES:
        for each in parsed(path).texts.items():
            places.setdefault(each, []).append(relative(path))
    assert {name for (name, _), paths in places.items() if len(paths) > 1} == set(SAME_TEXTS)


PROSE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PATH_IN_PROSE = re.compile(r"(?<![\w./<>*~-])((?:[\w.-]+/)*[\w-]+\.(?:py|mjs))\b")
MODULE_PATH_IN_PROSE = re.compile(
    r"(?<![\w./-])((?:actors|cli|config|context|gateway|ledger|memory|records|replaying|runtime|tuning)(?:/\w+)+)(?![\w./*<{])"
)
NOT_IN_THE_CODE = {"None", "Task", "IsolatedAsyncioTestCase", "Local", "StreamingHttpResponse"}
"""A constant of the language, classes of asyncio, unittest and Django, and a provider in an example."""
SPAN_NAMES = {name for name in vars(span_names).values() if isinstance(name, str)}
CLASS_IN_PROSE = re.compile(r"`(?:\w+\.)*(_?[A-Z][a-z]+[A-Za-z0-9]*)\b(?![-: ])")


def prose_of(path: Path) -> str:
    """The text of a page; of a module, its docstrings and comments."""
    text = path.read_text(encoding="utf-8")
    return text if path.suffix != ".py" else "\n".join((*parsed(path).docstrings, *re.findall(r"# .*", text)))


def classes_in_the_code(named: set[str]) -> set[str]:
    """Those of the names that the code of the repository has."""
    found = {name for path in SOURCES for name in named & parsed(path).names}
    for path in repository_files():
        if path.suffix == ".py" and path not in SOURCES and (left := named - found):
            text = path.read_text(encoding="utf-8")
            if any(each in text for each in left):  # reading the names of all the tests would take seconds
                found |= left & parsed(path).names
    return found


def test_documents_and_docstrings_name_only_what_exists() -> None:
    files = [f"/{relative(path)}" for path in repository_files()]
    sources = [file for file in files if file.startswith(("/src/", "/verify/"))]
    texts = {path: prose_of(path) for path in (*PROSE, *SOURCES)}
    classes = {each for text in texts.values() for each in CLASS_IN_PROSE.findall(text)} - NOT_IN_THE_CODE
    unknown = classes - classes_in_the_code(classes)
    package = ROOT / "src" / "kitchener"
    missing = []
    for path, text in texts.items():
        # A module names its neighbours, so a file of the tests that happens to have the name is not meant.
        nearby = sources if path in SOURCES else files
        missing += [
            f"{relative(path)}: {name}"
            for name in sorted(
                {
                    each
                    for each in PATH_IN_PROSE.findall(text)
                    if not any(file.endswith(f"/{each}") for file in (files if "/" in each else nearby))
                }
                | {
                    each
                    for each in MODULE_PATH_IN_PROSE.findall(text)
                    if not (package / each).is_dir() and not (package / f"{each}.py").is_file()
                }
                | {
                    each
                    for each in DOTTED_NAME.findall(text)
                    if each not in FILES_OF_A_USER | SPAN_NAMES and not resolves(each)
                }
                | unknown.intersection(CLASS_IN_PROSE.findall(text))
            )
        ]
    assert missing == []


def test_the_steps_of_a_turn_name_modules_that_exist() -> None:
    """The table of `docs/turn.md` names them below `actors/`, and so without the room by which other paths are recognised."""
    page = (ROOT / "docs" / "turn.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.partition("| step |")[2].partition("\n\n")[0].splitlines()]
    named = {name for row in rows if len(row) > 3 for name in re.findall(r"`([a-z_/]+)`", row[3])}
    assert {"turn/turn", "turn/chain"} <= named
    assert {name for name in named if not (ROOT / "src" / "kitchener" / "actors" / f"{name}.py").is_file()} == set()


def test_nothing_in_the_source_is_left_to_do() -> None:
    unfinished = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    found = [
        f"{relative(path)}:{number}: {line.strip()[:100]}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if unfinished.search(line)
    ]
    assert found == []


def test_tests_stand_in_a_folder_of_the_name_that_the_source_has() -> None:
    """A folder of more than two modules has tests of its own, or says where they are."""
    package, tests = ROOT / "src" / "kitchener", ROOT / "tests"
    folders = (folder.relative_to(package).as_posix() for folder in package.rglob("*") if len(modules(folder)) > 2)
    assert {folder for folder in folders if not any((tests / folder).glob("test_*.py"))} == TESTED_ELSEWHERE.keys()


PRIVATE_OF_SOURCE = re.compile(r"^\s*(?:async )?def (_[a-z]\w*)|\bself\.(_[a-z]\w*)|^(_[a-z]\w*)(?: =|:)", re.MULTILINE)
PRIVATE_OF_OTHERS = re.compile(r"\.(?<!\bself\.)(?<!\bcls\.)(?<!\bos\.)(_(?!asdict|fields|replace)[a-z]\w*)")
PRIVATE_THAT_IS_SET = re.compile(r"setattr\([^\n]*\"(_[A-Za-z]\w*)\"")
REPLACES_PRIVATE = {
    "tests/actors/executor/test_prompts.py: _FENCE_DIGITS": "of sixteen digits, no text that anybody can find contains its own",
}
"""Private names that a test gives another value, and why."""
IMPORTED = re.compile(r"^\s*from kitchener\S* import (\([^)]*\)|.+)$", re.MULTILINE)
OTHER_IMPORTS = re.compile(r"^(?:from|import) (?!kitchener).*$", re.MULTILINE)
LISTS_FUNCTIONS = ROOT / "tests" / "hostile" / "texts" / "text_functions.py"
"""Names the functions of the library that scan foreign text, some of them private."""


def test_tests_use_no_private_name_of_the_library() -> None:
    """What a test needs to see is public, or seen from outside. A test may define such a name itself."""
    of_library = {
        name for path in SOURCES for each in PRIVATE_OF_SOURCE.findall(path.read_text(encoding="utf-8")) for name in each
    }
    found = []
    for path in repository_files():
        if path.suffix == ".py" and path.is_relative_to(ROOT / "tests") and path not in (LISTS_FUNCTIONS, Path(__file__)):
            text = OTHER_IMPORTS.sub("", path.read_text(encoding="utf-8"))
            used = {*PRIVATE_OF_OTHERS.findall(text), *re.findall(r"\b_[a-z]\w*", "".join(IMPORTED.findall(text)))} & of_library
            own = re.findall(r"(?:def|class) (_\w+)|\bself\.(_\w+)", text) if used else []
            found += [f"{relative(path)}: {each}" for each in used - {name for each in own for name in each}]
            found += [f"{relative(path)}: {each}" for each in PRIVATE_THAT_IS_SET.findall(text)]
    assert set(found) == REPLACES_PRIVATE.keys()


def test_no_folder_of_tests_is_named_after_source_that_has_gone() -> None:
    package, tests = ROOT / "src" / "kitchener", ROOT / "tests"
    found = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    rooms = {folder.name for folder in package.iterdir() if folder.is_dir()}
    below = (folder.as_posix() for folder in found if folder.parts[:1] and folder.parts[0] in rooms)
    assert [folder for folder in below if not (package / folder).is_dir()] == []


UNTYPED = {"ContextState.history", "Projector.estimate"}
"""Public attributes without a type, of policy modules: a type would change their hash, which is on record."""


def test_public_attributes_of_exported_classes_say_their_type() -> None:
    """Type checkers infer others differently: `pyright --verifytypes kitchener` calls them ambiguous."""
    modules = ["kitchener", *(f"kitchener.{each}" for each in MODULES_OF_TOP - {"cli", "py"} if not each.startswith("_"))]
    found = set()
    for module in map(importlib.import_module, modules):
        for each in getattr(module, "__all__", vars(module)):
            exported = getattr(module, each)
            is_ours = inspect.isclass(exported) and exported.__module__.startswith("kitchener")
            if is_ours and "__init__" in vars(exported) and not dataclasses.is_dataclass(exported):
                found |= {f"{exported.__qualname__}.{name}" for name in untyped_in(exported)}
    assert found == UNTYPED


def untyped_in(owner: type) -> set[str]:
    """The public attributes to which `__init__` of a class gives another value than an argument, and no type."""
    made = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(vars(owner)["__init__"]))))
    given, typed = set[str](), {"args"} | {name for base in owner.__mro__ for name in inspect.get_annotations(base)}
    for node in made:
        if isinstance(node, ast.AnnAssign):
            typed.add(ast.unparse(node.target).removeprefix("self."))
        for target in node.targets if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Name) else ():
            parts = map(ast.unparse, getattr(target, "elts", [target]))
            given |= {each.removeprefix("self.") for each in parts if re.fullmatch(r"self\.[a-z]\w*", each)}
    return given - typed
