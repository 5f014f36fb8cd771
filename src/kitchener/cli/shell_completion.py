"""`kitchener completion`: prints a script that lets a shell complete commands and options."""

from typing import Annotated, Literal

from cyclopts import Parameter

from kitchener.cli.app import build_app
from kitchener.cli.exits import OK
from kitchener.cli.terminal.output import print_text


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell.")]) -> int:
    """Print a script with which a shell completes commands and options.

    For example:

        eval "$(kitchener completion bash)"
        kitchener completion zsh > ~/.zfunc/_kitchener
        kitchener completion fish > ~/.config/fish/completions/kitchener.fish
    """
    print_text(build_app(is_listing=False).generate_completion(shell=shell).rstrip("\n"))
    return OK
