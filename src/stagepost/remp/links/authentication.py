"""Authentication, first on every link: both sides prove that they hold the keys that the handshake named.

What is signed names the role of the signer, so that no proof can be sent back to whoever made it; both nonces, so that
none can be used again; both keys and the session, so that none can be used towards somebody else or for another end.
It says who opened the link. It does not hide what is said later, nor protect it from whoever sits on the wire: blocks,
receipts and messages carry their own signatures and hashes.
"""

from __future__ import annotations

from enum import Enum
from hashlib import sha256

import msgspec

from stagepost.errors import ErrorCode, HandshakeRefused, RemoteProtocolError
from stagepost.ground.crypto import ed25519
from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State
from stagepost.ground.wire.codec import Dialect
from stagepost.ground.wire.layout import ByteString, Layout, Text

NONCE_BYTES = 32
SESSION_ID_BYTES = 32
STATE_TIMEOUT_S = 10.0
MESSAGE_BYTES_MAX = 1_024
RULE_BYTES_MAX = 64
TEXT_BYTES_MAX = 512

DOMAIN_TAG = b"stagepost link authentication 1\0"
_NETWORK_TAG = b"stagepost REMP links of network\0"


# Messages


class Prove(msgspec.Struct, frozen=True):
    """The initiator's proof, and the session that the link is for."""

    session_id: bytes
    signature: bytes


class Proved(msgspec.Struct, frozen=True):
    """The initiator is believed; the responder's own proof."""

    signature: bytes


class Refuse(msgspec.Struct, frozen=True):
    """`code` is one of the family that all errors share, `rule` says which rule, `text` is for people."""

    code: str
    rule: str
    text: str


# Layouts

_SIGNATURE = ByteString(ed25519.SIGNATURE_BYTES, ed25519.SIGNATURE_BYTES)
DIALECT = Dialect(
    "authentication",
    (
        Layout(
            Prove,
            0,
            (("session_id", ByteString(SESSION_ID_BYTES, SESSION_ID_BYTES)), ("signature", _SIGNATURE)),
        ),
        Layout(Proved, 1, (("signature", _SIGNATURE),)),
        Layout(
            Refuse,
            2,
            (("code", Text(RULE_BYTES_MAX)), ("rule", Text(RULE_BYTES_MAX)), ("text", Text(TEXT_BYTES_MAX))),
        ),
    ),
)

# States

PROVE = State(
    "Prove", Role.CLIENT, timeout_s=STATE_TIMEOUT_S, message_bytes_max=MESSAGE_BYTES_MAX, items_max=5
)
ANSWER = State(
    "Answer", Role.SERVER, timeout_s=STATE_TIMEOUT_S, message_bytes_max=MESSAGE_BYTES_MAX, items_max=5
)
DONE = State("Done", speaker=None)

# Spec

AUTHENTICATION = ProtocolSpec(
    name="Authentication",
    initial=PROVE,
    edges=(Edge(PROVE, Prove, ANSWER), Edge(ANSWER, Proved, DONE), Edge(ANSWER, Refuse, DONE)),
)


# What is proved


class Side(Enum):
    """Who signs. The value stands in the signed bytes."""

    INITIATOR = b"initiator"
    RESPONDER = b"responder"


class LinkTerms(msgspec.Struct, frozen=True):
    """What the handshake settled: the version, the network, and who claims to be at either end."""

    version: int
    network_magic: int
    initiator_key: bytes
    initiator_nonce: bytes
    responder_key: bytes
    responder_nonce: bytes

    def signed_bytes(self, side: Side, session_id: bytes) -> bytes:
        """Every part has a fixed length, so no two sets of parts give the same bytes."""
        return b"".join(
            (
                DOMAIN_TAG,
                side.value,
                self.version.to_bytes(2, "big"),
                self.network_magic.to_bytes(4, "big"),
                self.initiator_nonce,
                self.responder_nonce,
                self.initiator_key,
                self.responder_key,
                session_id,
            )
        )

    def prove(self, side: Side, session_id: bytes, seed: bytes) -> bytes:
        return ed25519.sign(seed, self.signed_bytes(side, session_id))

    def check(self, side: Side, session_id: bytes, signature: bytes) -> None:
        """Raises if this is not the proof of the key that this side named."""
        key = self.initiator_key if side is Side.INITIATOR else self.responder_key
        if not ed25519.verify(key, self.signed_bytes(side, session_id), signature):
            name = side.value.decode()
            raise RemoteProtocolError(
                f"Authentication: the {name} did not prove that it holds the key {key.hex()}",
                code=ErrorCode.PROTOCOL_REQUEST,
                advice="check the key that the peer was given",
                reason="BadProof",
            )


def network_session_id(network_magic: int) -> bytes:
    """Links between full nodes and validators belong to no session of validators, but to the network."""
    return sha256(_NETWORK_TAG + network_magic.to_bytes(4, "big")).digest()


def refusal(error: RemoteProtocolError) -> Refuse:
    """What the refused peer is told. Texts are ours and short; this only makes sure of it."""
    text = error.text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")
    return Refuse(str(error.code), error.reason or "", text)


def refused_by_peer(refuse: Refuse) -> HandshakeRefused:
    """What the refused side makes of it: no misdeed of the peer. Codes that we do not know are told as text."""
    known = refuse.code in ErrorCode.__members__
    code = ErrorCode(refuse.code) if known else ErrorCode.PROTOCOL_REQUEST
    return HandshakeRefused(
        f"Authentication: the peer refused: {refuse.code} {refuse.rule}: {refuse.text}",
        code=code,
        reason=refuse.rule,
    )
