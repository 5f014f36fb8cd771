"""`kitchener config`: checks the settings, shows those in force, and describes all of them."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from cyclopts import App

from kitchener.cli.config.checked_keys import check_clients, check_prompts, check_signing_key
from kitchener.cli.config.toml import meaning, toml_lines, toml_value
from kitchener.cli.exits import OK, USAGE
from kitchener.cli.options import NO_OPTIONS, JsonFlag, Options
from kitchener.cli.terminal.output import print_json, print_text
from kitchener.config import RuntimeConfig, Settings
from kitchener.config.settings_parser import without_secrets
from kitchener.config.shown import described_key
from kitchener.errors import ConfigError
from kitchener.gateway.routing import check_router
from kitchener.runtime.agents.class_tools import check_tools
from kitchener.runtime.setting_checks import (
    check_is_configured,
    keyless_endpoints,
    unfitting_limits,
    unpriced_models,
    unreachable_routes,
)

app = App(name="config", help="Check and show settings.")


@app.command
def check(*, options: Options = NO_OPTIONS, json: JsonFlag = False) -> int:
    """Say whether the settings are right: keys, values, routes, and what they refer to.

    Looks up the keys of providers and of `[serve.clients]` and the signing key, imports the modules of tools, and reads prompts
    and attention templates. Exits with 2 at the first setting that is wrong, and names it. A route that no work order can take
    is a warning, and so are limits that cannot fit each other and a public endpoint to which no key is sent. With `--agent`,
    the class has to be configured.

    For example:

        kitchener config check
        kitchener config check --config other.toml --json
    """
    try:
        loaded = options.load_checked()
        check_tools(loaded.config, loaded.source)
        check_prompts(loaded)
        check_clients(loaded)
        check_signing_key(loaded)
        if options.named_agent is not None:
            check_is_configured(loaded.config, options.named_agent)
    except ConfigError as error:
        if not json:
            raise
        facts = {"source": error.source, "key": error.key, "value": error.value, "expected": error.expected}
        print_json({"ok": False, **facts})
        return USAGE
    config = loaded.config
    agents, providers = (list(map(described_key, sorted(names))) for names in (config.classes, config.router.providers))
    found = [*unreachable_routes(config), *unfitting_limits(config), *unpriced_models(config), *keyless_endpoints(config)]
    if json:
        warnings = [{"key": key, "problem": problem} for key, problem in found]
        print_json({"ok": True, "source": loaded.source, "agents": agents, "providers": providers, "warnings": warnings})
    else:
        print_text(f"ok: {loaded.source}")
        for key, problem in found:
            print_text(f"warning: {key}: {problem}")
        print_text(f"agents: {', '.join(agents) or 'any, with the same settings'}; providers: {', '.join(providers)}")
    return OK


@app.command
def show(*, options: Options = NO_OPTIONS, json: JsonFlag = False) -> int:
    """Print the settings in force: the file, `KITCHENER_*` variables and options, laid over the defaults.

    Keys of providers appear as the references they are, never as values.

    For example:

        kitchener config show
        KITCHENER_LEDGER__DURABILITY=os kitchener config show --json
    """
    loaded = options.load()
    # Refuses a secret in the file itself or in an address, so that it is not printed.
    check_router(loaded.config.router, source=loaded.source)
    settings = without_secrets(loaded.config)
    if json:
        print_json(settings)
    else:
        print_text(f"# {loaded.source}")
        print_text("\n".join(toml_lines(settings)))
    return OK


@app.command
def schema(*, json: JsonFlag = False) -> int:
    """List every setting with its meaning, type and default; with `--json` as a JSON Schema.

    For example:

        kitchener config schema
        kitchener config schema --json > kitchener.schema.json
    """
    if json:
        print_json(RuntimeConfig.model_json_schema())
    else:
        print_text("\n".join(_described(RuntimeConfig)).lstrip())
    return OK


def _described(model: type[Settings], table: str = "") -> Iterator[str]:
    inner: list[tuple[str, type[Settings]]] = []
    if table:
        yield f"\n[{table}]"
    heading = ""
    for key, field in model.model_fields.items():
        if (group := _group_of(model, key)) != heading:
            heading = group
            yield f"\n# {heading}"
        place = f"{table}.{key}" if table else key
        if (settings := _settings_in(field.annotation)) is not None:
            is_named = get_origin(field.annotation) is dict
            inner.append((f"{place}.<{_NAMES.get(key, 'id')}>" if is_named else place, settings))
            continue
        default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        yield f"{key}: {_type_name(field.annotation)} = {default}"
        yield f"    {meaning(model, key)}"
    for place, settings in inner:
        yield from _described(settings, place)


def _group_of(model: type[Settings], key: str) -> str:
    """The heading of the setting's group, if its table has several groups; otherwise empty."""
    groups = [each for each in model.__bases__ if issubclass(each, Settings) and each is not Settings]
    return next((" ".join((each.__doc__ or "").split()) for each in groups if key in each.model_fields), "")


_NAMES = {"agents": "class", "domain_tag_routes": "tag", "gate_overrides": "kind", "models": "type", "tool_limits": "name"}


def _settings_in(annotation: object) -> type[Settings] | None:
    """The settings model of a field, or of the values of a field that is a table; None: it has none."""
    candidates = get_args(annotation)[1:] if get_origin(annotation) is dict else (annotation,)
    return next((each for each in candidates if isinstance(each, type) and issubclass(each, Settings)), None)


def _default(value: object) -> str:
    return "unset" if value is None else toml_value(value)


def _type_name(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(map(toml_value, inner))
    if origin is dict:
        return f"table of {_type_name(inner[1])}"
    if origin is tuple:
        return f"list of {_type_name(inner[0])}"
    if origin is Annotated:
        return _type_name(inner[0])
    if origin in (Union, UnionType):
        return _type_name(next(each for each in inner if each is not type(None)))
    if annotation is Any:
        return "any value"
    if issubclass(annotation, Settings):
        return f"{{{', '.join(annotation.model_fields)}}}"
    return {str: "text", int: "whole number", float: "number", bool: "true | false"}[annotation]
