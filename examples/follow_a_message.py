"""Hand an external message to a full node and follow it until it is final.

    stagepost devnet --validators 4 --one-process --data stagepost-data &
    python examples/follow_a_message.py stagepost-data alice 100

The message asks an account of the embedded chain, here one that is called after alice, to add the primes up to 100 to
what it holds. Without arguments for it, `Client.connect()` finds the nodes that run in `stagepost-data`.
"""

import sys

from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.client import Client, RefusedByFullNode
from stagepost.ground.crypto.hashing import blake2b_256

FINAL_WITHIN_S = 60


def main(data: str, name: str, number: str) -> None:
    account = blake2b_256(name.encode())[:31] + bytes([ContractKind.SUM_OF_PRIMES])
    message = CanonicalMessage(account, primes_body(int(number))).encode()
    with Client.connect(data=data) as client:
        try:
            sent = client.send(message)
        except RefusedByFullNode as error:
            print(f"refused: {error} ({error.code})")
            return
        assert sent.message_id is not None, "an external message has an id"
        verdict = client.wait_for(sent.message_id, "optimistic", timeout_s=FINAL_WITHIN_S)
        print(f"{sent.message_id}: {verdict}")
        verdict = client.wait_for(sent.message_id, "final", timeout_s=FINAL_WITHIN_S)
        print(f"{sent.message_id}: {verdict}, silent: {', '.join(verdict.missing) or 'nobody'}")
        for lane in client.trace(sent.message_id).lanes:
            print(f"{lane.name:<10} {' '.join(point.mark.value for point in lane.points) or 'silent'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
