"""Says at the start of a chat who answers, where it is recorded, and what one can type."""

import importlib.metadata
from collections.abc import Iterator

from kitchener.actors.work.plan import model_choice, tags_for
from kitchener.config import RuntimeConfig
from kitchener.gateway.routing import plan_route
from kitchener.plain_names import shown_path
from kitchener.runtime.ledger_paths import agent_of
from kitchener.tuning import OWN_MODELS


def banner_lines(config: RuntimeConfig, agent_class: str) -> Iterator[str]:
    """The first lines of a chat on a terminal."""
    agent = agent_of(config, agent_class)
    choice = model_choice(agent, "synthesis")
    first = plan_route(choice.provider, choice.model, tags_for(agent, "synthesize"), config.router).candidates[0]
    model = first.model_id or OWN_MODELS.get(first.provider_id, "its own model")
    version = importlib.metadata.version("kitchener")
    yield f"Kitchener {version} · agent {agent_class} · model {model} of {first.provider_id}"
    yield f"Ledgers in {shown_path(config.plane_root)}"
    if first.provider_id in OWN_MODELS:
        yield "This model follows fixed rules, without a network. For a real one: kitchener init --provider openai --model NAME"
    yield "/help lists the commands. Ctrl-C cancels a turn; at the prompt it leaves."
