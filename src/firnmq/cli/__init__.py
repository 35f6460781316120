"""The `firn` command."""

from firnmq.cli.main import main

__all__ = ["main"]
