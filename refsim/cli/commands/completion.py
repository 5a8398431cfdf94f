"""refsim completion: the script that a shell evaluates."""

import click

from refsim.cli import console
from refsim.errors import unknown

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", metavar="|".join(SHELLS))
def command(shell: str) -> int:
    """Print the script that completes commands, options and format names in your shell.

    \b
      bash  echo 'eval "$(refsim completion bash)"' >> ~/.bashrc
      zsh   echo 'eval "$(refsim completion zsh)"' >> ~/.zshrc
      fish  refsim completion fish > ~/.config/fish/completions/refsim.fish
    """
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell) if shell in SHELLS else None
    if completion is None:
        raise unknown("shell", shell, list(SHELLS))
    # source() of the bash class would start a bash to ask for its version
    script = completion(click.get_current_context().find_root().command, {}, "refsim", "_REFSIM_COMPLETE")
    console.answer(script.source_template % script.source_vars())
    return 0
