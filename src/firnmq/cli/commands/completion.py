"""`firn completion`: commands and options completed by the shell."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that makes a shell complete commands, options and topics.

    \b
    bash:  firn completion bash > ~/.local/share/bash-completion/completions/firn
    zsh:   firn completion zsh > "${fpath[1]}/_firn"
    fish:  firn completion fish > ~/.config/fish/completions/firn.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    root = click.get_current_context().find_root().command
    script = kind(root, {}, "firn", "_FIRN_COMPLETE")
    # Not source(), which starts a bash to look at its version.
    text = script.source_template % script.source_vars()
    # A description may have commas.
    click.echo(text.replace('string split "," ', 'string split --max 1 "," '))
