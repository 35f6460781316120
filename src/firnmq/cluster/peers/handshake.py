"""Both ends of a connection prove that they know the cluster's secret, which is never sent.

The secret is in the meta store: what can read and write the metadata is a node. Over TLS the proofs
also name both certificates, so that a process between two nodes, whose certificate the same
authority has signed, cannot pass the proofs on. Without TLS the bytes that follow are not
encrypted, and nodes belong on a network of their own.
"""

from __future__ import annotations

import hashlib
import hmac
import os

import msgspec

from firnmq.cluster.peers.frames import FrameError, FrameParser

VERSION = 1
NONCE_BYTES = 32
_HEADER_BYTES_MAX = 256
"""Of a handshake's frames, which have no body."""
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


def new_parser() -> FrameParser:
    """Takes the small frames of a handshake until it is told to trust the other side."""
    return FrameParser(header_bytes_max=_HEADER_BYTES_MAX, body_bytes_max=0)


def introduce(
    secret: bytes, node: int, wanted: int, greeting: Greeting, certificates: bytes = b""
) -> Introduction:
    """`certificates`: over TLS, the fingerprint of the accepting side's, then of the other's."""
    if greeting.version != VERSION:
        raise FrameError(f"the other node speaks version {greeting.version}, this one {VERSION}")
    nonce = new_nonce()
    proof = _proof(secret, b"connect", greeting.nonce, nonce, node, wanted, certificates)
    return Introduction(node, wanted, nonce, proof)


def welcome(
    secret: bytes,
    node: int,
    greeting: Greeting,
    introduction: Introduction,
    certificates: bytes = b"",
) -> Welcome:
    """FrameError unless the other side knows the secret and wants this node."""
    places = greeting.nonce, introduction.nonce, introduction.node, node, certificates
    expected = _proof(secret, b"connect", *places)
    if not hmac.compare_digest(expected, introduction.proof):
        raise FrameError("the other side does not know the cluster's secret, or wants another node")
    return Welcome(_proof(secret, b"accept", *places))


def check_welcome(
    secret: bytes,
    greeting: Greeting,
    introduction: Introduction,
    answer: Welcome,
    certificates: bytes = b"",
) -> None:
    expected = _proof(
        secret,
        b"accept",
        greeting.nonce,
        introduction.nonce,
        introduction.node,
        introduction.wanted,
        certificates,
    )
    if not hmac.compare_digest(expected, answer.proof):
        raise FrameError("the other side does not know the cluster's secret")


def _proof(
    secret: bytes,
    role: bytes,
    greeted: bytes,
    introduced: bytes,
    node: int,
    wanted: int,
    certificates: bytes,
) -> bytes:
    text = b"%s|%s|%s|%d|%d" % (
        role,
        greeted.hex().encode(),
        introduced.hex().encode(),
        node,
        wanted,
    )
    if certificates:
        text += b"|" + certificates.hex().encode()
    return hmac.digest(secret, text, hashlib.sha256)
