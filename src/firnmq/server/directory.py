"""A temporary node in this process, for work that needs a node when none is running."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path

from firnmq.errors import InvalidArgument
from firnmq.server.node import Node
from firnmq.server.settings import NodeConfig, load_node_config

_LOOPBACK = "127.0.0.1"


class ServedDirectory:
    """A node in its own thread, on free ports of this machine, until it is closed."""

    def __init__(self, path: Path, config: NodeConfig) -> None:
        self._node = Node(path, config)
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self.bootstrap = ""
        self.admin = ""
        self.token: str | None = None
        """The token for requests to `admin`, if one is needed."""
        self._thread = threading.Thread(target=self._run, name="firn-directory", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def close(self) -> None:
        """Releases the directory. Closing twice is no error."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # The thread that waits for the start raises it again.
            self._failure = error
        finally:
            self._loop.close()
            self._started.set()

    async def _serve(self) -> None:
        async with self._node as node:
            address = node.broker.address
            assert node.admin is not None
            self.bootstrap, self.admin = f"{address.host}:{address.port}", node.admin.url
            self.token = None if node.admin.token is None else node.admin.token.text
            self._started.set()
            await self._stopping.wait()


def open_directory(path: str, config_path: str | None = None) -> ServedDirectory:
    """Serves an existing directory; DirectoryInUse if a node already serves it. A configuration
    file and FIRN_* variables apply, except for the addresses."""
    if not Path(path).is_dir():
        raise InvalidArgument("data", f"{path} is no directory")
    config = load_node_config(None if config_path is None else Path(config_path))
    return ServedDirectory(
        Path(path),
        dataclasses.replace(
            config,
            kafka=dataclasses.replace(config.kafka, host=_LOOPBACK, port=0, advertised_host=None),
            admin=dataclasses.replace(
                config.admin, enabled=True, host=_LOOPBACK, port=0, token_file=None
            ),
        ),
    )
