"""Sign a message and submit it to a DMQ node, without an event loop of your own.

    python examples/submit_message.py dmq-node.socket 2147483690 my-pool "hello"

The keys are those of `stagepost keys new my-pool`; the number is the network's magic.
"""

import sys
import time
from pathlib import Path

from stagepost.client import Client, Rejected, sign_message
from stagepost.crypto.kes import SigningKey
from stagepost.dmq.text_envelope import IssuedCertificate
from stagepost.runtime.key_files import load_as

TTL_S = 600
BODY_BYTES_MIN = 90


def main(socket_path: str, network_magic: str, keys: str, text: str) -> None:
    key = load_as(SigningKey, Path(keys) / "kes.skey")
    issued = load_as(IssuedCertificate, Path(keys) / "opcert.cert")
    message = sign_message(
        text.encode().ljust(BODY_BYTES_MIN),  # networks carry no shorter bodies
        key=key,
        certificate=issued.certificate,
        cold_verification_key=issued.cold_verification_key,
        kes_period=issued.certificate.start_kes_period + key.period,
        expires_at=int(time.time()) + TTL_S,
    )
    with Client.connect(socket_path, int(network_magic)) as client:
        outcome = client.submit(message)
    if isinstance(outcome, Rejected):
        print(f"rejected {message.message_id.hex()}: {outcome.reason}, {outcome.text}")
    else:
        print(f"accepted {message.message_id.hex()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
