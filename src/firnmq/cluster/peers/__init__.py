"""How nodes talk to each other: frames, connections, and the errors that cross them."""

from firnmq.cluster.peers.certificates import Certificates
from firnmq.cluster.peers.failures import decode_error, encode_error
from firnmq.cluster.peers.frames import Frame
from firnmq.cluster.peers.network import PeerNetwork
from firnmq.cluster.peers.server import PeerMessage, Request, RequestHandler, Served

__all__ = [
    "Certificates",
    "Frame",
    "PeerMessage",
    "PeerNetwork",
    "Request",
    "RequestHandler",
    "Served",
    "decode_error",
    "encode_error",
]
