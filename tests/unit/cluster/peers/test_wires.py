"""The end of a connection, whenever it comes."""

import asyncio
from unittest import mock

from firnmq.cluster.peers.frames import FrameParser
from firnmq.cluster.peers.wires import Wire


def test_a_connection_that_is_ended_before_it_is_made_ends_when_it_is() -> None:
    """An accepting server learns of many connections at once, and each is made a moment later."""
    made: list[Wire] = []
    lost: list[str] = []

    async def act() -> None:
        wire = Wire(FrameParser(), made.append, print, lambda _, reason: lost.append(reason))
        wire.abort("too many")
        wire.abort("again")
        transport = mock.create_autospec(asyncio.Transport, instance=True)
        wire.connection_made(transport)
        transport.abort.assert_called_once_with()
        wire.connection_lost(None)

    asyncio.run(act())
    assert (made, lost) == ([], ["too many"])
