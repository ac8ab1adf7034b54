"""Stream of messages to a full node of processes, at a steady rate, through kills and restarts; and what must hold of all of
them in the end: each is executed once, both verifiers take its proof from the genesis, and every account holds its sum.
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from stagepost.chain.contracts import primes_body, sum_in, sum_of_primes
from stagepost.chain.messages import MessageDraft
from stagepost.chain.node.reading import read_ledger
from stagepost.chain.proofs.proof_form import EndKind
from stagepost.chain.proofs.proof_rules import ProofRefused, ProofVerifier
from stagepost.devnet.messages import ACCOUNTS, SumMessage, account_of
from stagepost.errors import ProtocolTimeout, StagepostError
from stagepost.full_node.local_client import ExternalMessages, RefusedByFullNode
from stagepost.full_node.network import load_network
from stagepost.full_node.running import CHAIN_FOLDER
from stagepost.ground.files.running_nodes import find_full_node
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.topics.log.file_topic import open_topic
from tests.worlds.chain.proved_chain import second

AGAIN_S = 0.2
ASKED_AT_ONCE = 8
"""Proofs that are asked for at once; the full node reads a proof from its topic, and two at once."""
LOOK_AGAIN_S = 2.0
ROUNDS_BEFORE_AGAIN = 6
"""Rounds over all messages without a proof from one in which they are submitted again to the next."""
LIFE_S = 1_500
"""Seconds until a message expires: more than a story lasts on a busy machine, and less than the chain allows."""
SUBMIT_TIMEOUT_S = 20.0
PROVED_WITHIN_S = 180.0
"""Seconds, at most, from the last message to the first proof, and from one proof to another. How many proofs a busy machine
makes in a second is no matter of promises.
"""
NEAR_MS = 2_000
WITH_SECOND_VERIFIER = 50
"""Proofs of a stream, at most, that the slower second verifier checks too, in equal distances."""


class MessageStream:
    """Sender of distinct sums, in a thread of its own. Use it as a context; `ends` waits for the ends."""

    def __init__(self, data: Path, network: Path, run: bytes, per_second: float) -> None:
        self.sent: dict[bytes, SumMessage] = {}
        self.again = 0
        """Submissions of the same bytes once more, of messages whose end did not come."""
        self._contents: dict[bytes, bytes] = {}
        self.submitted_ms: dict[bytes, float] = {}
        """Time of each message's submission, in Unix milliseconds; of one that was submitted again, none."""
        self.faults: list[str] = []
        self._data = data
        self._network = network
        self._run = run
        self._per_second = per_second
        self._over = Event()
        self._thread = Thread(target=lambda: asyncio.run(self._send()), name="messages")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    async def _send(self) -> None:
        client: ExternalMessages | None = None
        began, number = time.monotonic(), 0
        while not self._over.is_set():
            ahead_s = began + number / self._per_second - time.monotonic()
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
            message = SumMessage(account_of(self._run, number % ACCOUNTS), 2 + number // ACCOUNTS)
            # A message that the full node may have taken before it died is submitted again with the same bytes.
            draft = MessageDraft(message.account, primes_body(message.up_to), LIFE_S)
            content = draft.stamped(int(time.time() * 1_000)).encode()
            while True:
                try:
                    client = client or ExternalMessages(find_full_node(self._data))
                    asked_ms = time.time() * 1_000
                    taken = await client.submit(content, SUBMIT_TIMEOUT_S)
                    self.sent[taken.message_id] = message
                    self._contents[taken.message_id] = content
                    if taken.is_new:
                        self.submitted_ms[taken.message_id] = asked_ms
                    break
                except RefusedByFullNode as refused:
                    self.faults.append(f"message {number} was refused: {refused}")
                    break
                except StagepostError:
                    if client is not None:
                        await client.close()
                    client = None
                    await asyncio.sleep(AGAIN_S)
                    if self._over.is_set():
                        return  # nobody knows whether the full node has it, so it does not count
            number += 1
        if client is not None:
            await client.close()

    def ends(self) -> list[str]:
        """Stop, wait for the end of every message, and return what does not hold; nothing if all went well."""
        self.stop()
        proofs = asyncio.run(self._proofs())
        missing = len(self.sent) - len(proofs)
        faults = self.faults + self._wrong_proofs(proofs)
        if missing:
            faults.append(
                f"{missing} of {len(self.sent)} ends are not proved, the others {PROVED_WITHIN_S:g} s ago"
            )
        return faults + self._wrong_sums()

    async def _proofs(self) -> dict[bytes, bytes]:
        """Return the proof of each message, as far as they come in time."""
        client = ExternalMessages(find_full_node(self._data))
        found: dict[bytes, bytes] = {}
        left = list(self.sent)

        async def ask(waiting: Iterator[bytes], limit: asyncio.Timeout, *, is_again: bool) -> None:
            for message_id in waiting:
                proof = await self._asked_proof(client, message_id)
                if proof is not None:
                    found[message_id] = proof
                    limit.reschedule(asyncio.get_running_loop().time() + PROVED_WITHIN_S)
                elif is_again:
                    # Validators close a message after two catchains of the masterchain, which may follow one another
                    # closely when the set changes. The same bytes have the same id, so they count once.
                    with suppress(RefusedByFullNode, ProtocolTimeout):
                        await client.submit(self._contents[message_id], SUBMIT_TIMEOUT_S)
                        self.again += 1

        with suppress(TimeoutError):
            async with asyncio.timeout(PROVED_WITHIN_S) as limit:
                rounds = 0
                while left:
                    waiting = iter(left)
                    async with asyncio.TaskGroup() as asking:
                        for _ in range(ASKED_AT_ONCE):
                            asking.create_task(
                                ask(waiting, limit, is_again=rounds % ROUNDS_BEFORE_AGAIN == 1)
                            )
                    left = [one for one in left if one not in found]
                    rounds += 1
                    await asyncio.sleep(LOOK_AGAIN_S)
        await client.close()
        return found

    async def _asked_proof(self, client: ExternalMessages, message_id: bytes) -> bytes | None:
        """Return the proof; None while there is none, or while the full node of a busy machine is slow to answer."""
        try:
            return await client.proof(message_id, PROVED_WITHIN_S)
        except ProtocolTimeout:
            return None

    def _wrong_proofs(self, proofs: dict[bytes, bytes]) -> list[str]:
        verifier = ProofVerifier(load_network(self._network).chain)
        genesis, _ = second.read_genesis(self._network.read_bytes())
        faults = []
        every = max(1, len(proofs) // WITH_SECOND_VERIFIER)
        for number, (message_id, proof) in enumerate(proofs.items()):
            try:
                checked = verifier.check_file(proof)
                if (checked.kind, checked.message_id) != (EndKind.EXECUTED, message_id):
                    faults.append(
                        f"{message_id.hex()}: {checked.kind} is proved of {checked.message_id.hex()}"
                    )
                if number % every == 0:
                    second.verify(proof, genesis, None)
            except (ProofRefused, second.Refused) as refused:
                faults.append(f"{message_id.hex()}: its proof is refused: {refused}")
        return faults

    def switch_pace(self, log: Path) -> str:
        """Say how long SentToValidators took near a start of sessions, which the full node's log tells, and far from one."""
        switches = sorted(
            int(json.loads(line)["timestamp_ms"])
            for line in log.read_text(errors="replace").splitlines()
            if '"session started"' in line and line.startswith("{")
        )
        sent_ms: dict[bytes, int] = {}
        topic = open_topic(self._data, STATUSES_TOPIC)
        reader = topic.reader()
        for partition in range(topic.partitions):
            for batch in reader.batches(partition, reader.start_offset(partition)):
                for one in batch:
                    found = json.loads(one.value or b"{}")
                    if found.get("kind") == "SentToValidators":
                        sent_ms.setdefault(bytes.fromhex(found["message_id"]), int(found["timestamp"]))
        near: list[float] = []
        far: list[float] = []
        for message_id, asked_ms in self.submitted_ms.items():
            place = bisect(switches, asked_ms)
            distance = min(
                (abs(asked_ms - one) for one in switches[max(0, place - 1) : place + 1]), default=1e9
            )
            if message_id in sent_ms:
                (near if distance <= NEAR_MS else far).append(max(0.0, sent_ms[message_id] - asked_ms))
        said = (
            f"{len(each)} {where}: p50 {_share(each, 0.5):.0f} ms, p99 {_share(each, 0.99):.0f} ms"
            for where, each in (("near a switch", near), ("far from one", far))
        )
        return "SentToValidators " + "; ".join(said)

    def _wrong_sums(self) -> list[str]:
        """Return the accounts whose state in the chain on disk is not the sum of the messages, each counted once."""
        wanted: dict[bytes, tuple[int, int]] = {}
        for message in self.sent.values():
            total, count = wanted.get(message.account, (0, 0))
            wanted[message.account] = total + sum_of_primes(message.up_to), count + 1
        ledger = read_ledger(self._data / CHAIN_FOLDER)
        faults = []
        for account, sum_and_count in wanted.items():
            there = ledger.account(0, account)
            has = (0, 0) if there is None else sum_in(there.memory)
            if has != sum_and_count:
                faults.append(f"account {account.hex()} holds {has}, its messages make {sum_and_count}")
        return faults


def _share(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0
