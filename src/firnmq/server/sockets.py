"""Sockets that listen, and what keeps one from listening."""

from __future__ import annotations

import errno
import socket

from firnmq.config import AdminConfig
from firnmq.errors import CannotListen

_BACKLOG = 128


def open_listener(config: AdminConfig) -> socket.socket:
    """A socket that listens where the configuration says; CannotListen if it cannot."""
    opened = new_socket(config.host)
    try:
        opened.bind((config.host, config.port))
        opened.listen(_BACKLOG)
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        raise CannotListen("admin", config.host, config.port, error) from error
    return opened


def taken_port(setting: str, host: str, port: int) -> CannotListen | None:
    """The error that a listener there would meet because another program has the port."""
    with new_socket(host) as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return CannotListen(setting, host, port, error)
    return None


def new_socket(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    new = socket.socket(family, socket.SOCK_STREAM)
    new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return new
