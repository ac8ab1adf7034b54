"""A message with parts exchanged for others, as whoever relays it could send it: its bytes are put together anew."""

from __future__ import annotations

from stagepost.dmq.message import FIVE_ONLY, DmqMessage, MessageLayout, read_message, write_certificate
from stagepost.ground.crypto.operational_certificate import OperationalCertificate
from stagepost.ground.wire.cbor import CborReader, write_array, write_bytes


def altered(
    message: DmqMessage,
    *,
    message_id: bytes | None = None,
    kes_signature: bytes | None = None,
    operational_certificate: OperationalCertificate | None = None,
    cold_verification_key: bytes | None = None,
) -> DmqMessage:
    """Signed bytes stay as they are. Sizes are not checked."""
    assert message.layout is MessageLayout.FIVE
    raw = write_array(
        write_bytes(message.message_id if message_id is None else message_id),
        message.signed_bytes,
        write_bytes(message.kes_signature if kes_signature is None else kes_signature),
        write_certificate(operational_certificate or message.operational_certificate),
        write_bytes(
            message.cold_verification_key if cold_verification_key is None else cold_verification_key
        ),
    )
    return read_message(CborReader(raw), FIVE_ONLY, sizes=None)
