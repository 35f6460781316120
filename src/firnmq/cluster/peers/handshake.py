"""Both ends of a connection prove that they know the cluster's secret, which is never sent.

The secret is in the meta store: what can read and write the metadata is a node. The bytes that
follow are not encrypted, so nodes belong on a network of their own.
"""

from __future__ import annotations

import hashlib
import hmac
import os

import msgspec

from firnmq.cluster.peers.frames import FrameError

VERSION = 1
NONCE_BYTES = 32
HANDSHAKE_BYTES_MAX = 1024
HANDSHAKE_S = 5.0


class Greeting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the accepting side sends first."""

    version: int
    nonce: bytes


class Introduction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer of the connecting side."""

    node: int
    """Which node connects."""
    wanted: int
    """Which node it wants to talk to: an address may be another node's by now."""
    nonce: bytes
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the accepting side sends if it believes the proof and is the node that was wanted."""

    proof: bytes


def new_nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


def introduce(secret: bytes, node: int, wanted: int, greeting: Greeting) -> Introduction:
    if greeting.version != VERSION:
        raise FrameError(f"the other node speaks version {greeting.version}, this one {VERSION}")
    nonce = new_nonce()
    proof = _proof(secret, b"connect", greeting.nonce, nonce, node, wanted)
    return Introduction(node, wanted, nonce, proof)


def welcome(secret: bytes, node: int, greeting: Greeting, introduction: Introduction) -> Welcome:
    """FrameError unless the other side knows the secret and wants this node."""
    other = introduction.node
    expected = _proof(secret, b"connect", greeting.nonce, introduction.nonce, other, node)
    if not hmac.compare_digest(expected, introduction.proof):
        raise FrameError("the other side does not know the cluster's secret, or wants another node")
    return Welcome(_proof(secret, b"accept", greeting.nonce, introduction.nonce, other, node))


def check_welcome(
    secret: bytes, greeting: Greeting, introduction: Introduction, answer: Welcome
) -> None:
    expected = _proof(
        secret,
        b"accept",
        greeting.nonce,
        introduction.nonce,
        introduction.node,
        introduction.wanted,
    )
    if not hmac.compare_digest(expected, answer.proof):
        raise FrameError("the other side does not know the cluster's secret")


def _proof(
    secret: bytes, role: bytes, greeted: bytes, introduced: bytes, node: int, wanted: int
) -> bytes:
    text = b"%s|%s|%s|%d|%d" % (
        role,
        greeted.hex().encode(),
        introduced.hex().encode(),
        node,
        wanted,
    )
    return hmac.digest(secret, text, hashlib.sha256)
