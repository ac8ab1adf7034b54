"""Sign a message and submit it to a DMQ node, without an event loop of your own.

    python examples/submit_message.py dmq-node.socket 2147483690 my-pool "hello"

The keys are those of `stagepost keys new my-pool`; the number is the network's magic.
"""

import sys
import time
from pathlib import Path

from stagepost.client import Client, Rejected
from stagepost.dmq.keys.kes_clock import kes_schedule_for
from stagepost.dmq.keys.signing_pair import load_signing_pair

TTL_S = 600
BODY_BYTES_MIN = 90


def main(socket_path: str, network_magic: str, keys: str, text: str) -> None:
    now = time.time()
    pair = load_signing_pair(Path(keys))
    message = pair.sign(
        text.encode().ljust(BODY_BYTES_MIN),  # networks carry no shorter bodies
        kes_period=pair.period_at(kes_schedule_for(int(network_magic)), now),
        expires_at=int(now) + TTL_S,
    )
    with Client.connect(socket_path, int(network_magic)) as client:
        outcome = client.submit(message)
    if isinstance(outcome, Rejected):
        print(f"rejected {message.message_id.hex()}: {outcome.reason}, {outcome.text}")
    else:
        print(f"accepted {message.message_id.hex()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
