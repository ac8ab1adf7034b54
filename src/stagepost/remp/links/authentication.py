"""Authentication, first on every link: both sides prove that they hold the keys that the handshake named.

The signed bytes name the role of the signer, so that a proof cannot be sent back to its author; both nonces,
so that a proof cannot be used twice; both keys and the session, so that a proof cannot be used towards
another peer or for another purpose. On an encrypted link the signed bytes also name both ephemeral keys, and a hash of
both messages of the handshake, so that nobody on the way can change what was offered; everything behind the proof is
encrypted with keys that follow from both. On a plain link the proof shows who opened it, and nothing more.
"""

from __future__ import annotations

from enum import Enum
from hashlib import sha256

import msgspec

from stagepost.errors import ErrorCode, HandshakeRefused, RemoteProtocolError
from stagepost.ground.crypto import ed25519
from stagepost.ground.crypto.secret_stream import EphemeralKey, StreamKeys
from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State
from stagepost.ground.wire.codec import Dialect
from stagepost.ground.wire.layout import ByteString, Layout, Text

NONCE_BYTES = 32
SESSION_ID_BYTES = 32
STATE_TIMEOUT_S = 10.0
MESSAGE_BYTES_MAX = 1_024
RULE_BYTES_MAX = 64
TEXT_BYTES_MAX = 512

DOMAIN_TAG_PLAIN = b"stagepost link authentication 1\0"
DOMAIN_TAG = b"stagepost link authentication 2\0"
_STREAM_TAG = b"stagepost link streams\0"
_NETWORK_TAG = b"stagepost REMP links of network\0"


# Messages


class Prove(msgspec.Struct, frozen=True):
    """The initiator's proof, and the session that the link is for."""

    session_id: bytes
    signature: bytes


class Proved(msgspec.Struct, frozen=True):
    """The responder believes the initiator, and sends its own proof."""

    signature: bytes


class Refuse(msgspec.Struct, frozen=True):
    """`code` is a code of `ErrorCode`, `rule` names the broken rule, `text` is for people."""

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
    """The signer. The value stands in the signed bytes."""

    INITIATOR = b"initiator"
    RESPONDER = b"responder"


class LinkTerms(msgspec.Struct, frozen=True):
    """The result of the handshake: the version, the network, and the key and nonce that each end claims. For an encrypted
    link also the ephemeral keys, and the hash of the handshake.
    """

    version: int
    network_magic: int
    initiator_key: bytes
    initiator_nonce: bytes
    responder_key: bytes
    responder_nonce: bytes
    initiator_ephemeral: bytes = b""
    responder_ephemeral: bytes = b""
    transcript: bytes = b""

    @property
    def is_encrypted(self) -> bool:
        return bool(self.transcript)

    def signed_bytes(self, side: Side, session_id: bytes) -> bytes:
        """Every part has a fixed length for its tag, so no two sets of parts give the same bytes."""
        return b"".join(
            (
                DOMAIN_TAG if self.is_encrypted else DOMAIN_TAG_PLAIN,
                side.value,
                self.version.to_bytes(2, "big"),
                self.network_magic.to_bytes(4, "big"),
                self.initiator_nonce,
                self.responder_nonce,
                self.initiator_key,
                self.responder_key,
                self.initiator_ephemeral,
                self.responder_ephemeral,
                self.transcript,
                session_id,
            )
        )

    def stream_keys(
        self, ours: EphemeralKey, session_id: bytes, side: Side, plain_bytes: bytes
    ) -> StreamKeys:
        """Return the keys of the link's streams. Both proofs have been checked. `plain_bytes`: hashes of everything that was
        said until now. They show what the proofs do not cover, such as the times in the headers of segments.
        """
        is_initiator = side is Side.INITIATOR
        theirs = self.responder_ephemeral if is_initiator else self.initiator_ephemeral
        context = _STREAM_TAG + self.transcript + session_id + plain_bytes
        keys = ours.agree(theirs, context, is_client=is_initiator)
        if keys is None:
            raise RemoteProtocolError(
                f"Authentication: {theirs.hex()} is not an ephemeral key",
                code=ErrorCode.PROTOCOL_REQUEST,
                advice="repair the peer",
                reason="BadEphemeralKey",
            )
        return keys

    def prove(self, side: Side, session_id: bytes, seed: bytes) -> bytes:
        return ed25519.sign(seed, self.signed_bytes(side, session_id))

    def check(self, side: Side, session_id: bytes, signature: bytes) -> None:
        """Raise if `signature` is not a proof by the key that `side` named."""
        key = self.initiator_key if side is Side.INITIATOR else self.responder_key
        if not ed25519.verify(key, self.signed_bytes(side, session_id), signature):
            name = side.value.decode()
            raise RemoteProtocolError(
                f"Authentication: the {name} did not prove that it holds the key {key.hex()}",
                code=ErrorCode.PROTOCOL_REQUEST,
                advice="check the key of the peer in the network file",
                reason="BadProof",
            )


def network_session_id(network_magic: int) -> bytes:
    """Return the id under which links between full nodes and validators are opened: they belong to the
    network, not to a session.
    """
    return sha256(_NETWORK_TAG + network_magic.to_bytes(4, "big")).digest()


def refusal(error: RemoteProtocolError) -> Refuse:
    """Return the message that tells a refused peer why. Our texts are short; this function makes sure of it."""
    text = error.text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")
    return Refuse(str(error.code), error.reason or "", text)


def refused_by_peer(refuse: Refuse) -> HandshakeRefused:
    """Return the error for a refusal that the peer sent; it is no misdeed of the peer. An unknown code is
    kept as text.
    """
    known = refuse.code in ErrorCode.__members__
    code = ErrorCode(refuse.code) if known else ErrorCode.PROTOCOL_REQUEST
    return HandshakeRefused(
        f"Authentication: the peer refused: {refuse.code} {refuse.rule}: {refuse.text}",
        code=code,
        reason=refuse.rule,
    )
