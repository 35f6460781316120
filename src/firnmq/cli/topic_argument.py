"""The argument that names a topic, which the shell completes with the topics of the node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from firnmq.errors import FirnError

F = TypeVar("F", bound=Callable[..., Any])

_TIMEOUT_S = 1.0
"""A shell that completes a word waits no longer."""


def topic_argument(name: str = "topic", **attributes: Any) -> Callable[[F], F]:
    return click.argument(name, shell_complete=_matching, **attributes)


def _matching(ctx: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """The node's topics that begin like this. None without a node: only a command that the user
    starts opens a data directory."""
    from firnmq.cli.target import chosen_node

    given = ctx.params.get("topics") or ()
    try:
        with ctx.scope():
            node = chosen_node(changes=False, is_silent=True)
            if node is None:
                return []
            node.set_timeout(_TIMEOUT_S)
            names = [each["topic"] for each in node.get("topics")]
    except (FirnError, OSError, click.ClickException):
        return []  # The command itself reports the error.
    return [name for name in names if name.startswith(begun) and name not in given]
