"""Results of the demonstration, counted from the topics of statuses and proofs in its folder and from nothing else; and
the folder itself: empty, or left by an earlier demonstration, of which only its own files are removed.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path

import msgspec

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.data_folder import make_private
from stagepost.ground.files.owner_lock import OwnerLock
from stagepost.remp.receipts.receipt import Counting, Quarantined, Receipt
from stagepost.remp.receipts.status_records import check_record, read_record
from stagepost.remp.validator_sets import ValidatorSets
from stagepost.remp.verdict.state import MessageState
from stagepost.remp.verdict.verdict import Conclusion, Verdict, evaluate
from stagepost.trace.kept_proofs import ProofTail
from stagepost.trace.reading import topic_records
from stagepost.trace.session_records import load_sets

FULL_NODE = "full node"
ALL_RECORDS = 1 << 62
"""Records of the topic of proofs to begin with: every one."""


class RefusedReceipt(msgspec.Struct, frozen=True):
    """`who`: the source that the receipt names, as people see it; None if no member has that key."""

    reason: str
    who: str | None
    count: int


class DemoFindings(msgspec.Struct, frozen=True):
    """`verdicts` by their names in the tables. Times are from `SentToValidators` to `Finalized`; None if no
    message is final.
    """

    verdicts: dict[str, int]
    final_p50_ms: int | None
    final_p95_ms: int | None
    receipts: int
    verified: int
    refused: tuple[RefusedReceipt, ...]

    @property
    def messages(self) -> int:
        return sum(self.verdicts.values())


def findings_in(data: Path, as_of_ms: int) -> DemoFindings:
    sets = load_sets(data)
    states: dict[bytes, MessageState] = {}
    ends = dict(ProofTail(data, ALL_RECORDS).step())
    refused: Counter[tuple[str, str | None]] = Counter()
    receipts = verified = 0
    for record in topic_records(data):
        receipts += 1
        checked = check_record(record, sets)
        if isinstance(checked, Counting):
            verified += 1
            message_id = checked.receipt.message_id
            states.setdefault(message_id, MessageState()).add(checked, record.session_hint)
        else:
            receipt = read_record(record)
            who = None if isinstance(receipt, Quarantined) else _name_of(receipt, sets)
            refused[str(checked.reason), who] += 1
    for ended, end in ends.items():
        if ended in states:
            states[ended].prove(end)
    verdicts = [found for state in states.values() if (found := evaluate(state, sets, as_of_ms)) is not None]
    times = sorted(_final_ms(one) for one in verdicts if one.verdict == Conclusion.FINALIZED.value)
    return DemoFindings(
        dict(Counter(one.verdict for one in verdicts)),
        _share(times, 0.50),
        _share(times, 0.95),
        receipts,
        verified,
        tuple(
            RefusedReceipt(reason, who, count) for (reason, who), count in sorted(refused.items(), key=str)
        ),
    )


def _name_of(receipt: Receipt, sets: ValidatorSets) -> str | None:
    """Return the name of a receipt's source, by its place in the newest session that it may speak for at that
    time.
    """
    if receipt.source_id in sets.full_nodes:
        return FULL_NODE
    places = [
        (session.age_key, validator.index)
        for session, validator in sets.held_by(receipt.source_id, receipt.timestamp_ms, receipt.timestamp_ms)
    ]
    return sets.name_of(receipt.source_id, max(places)[1]) if places else None


def _final_ms(verdict: Verdict) -> int:
    """Return the milliseconds from sending to finality. They are 0 if the clock was set back in between."""
    assert verdict.finalized_ms is not None
    return 0 if verdict.sent_ms is None else max(0, verdict.finalized_ms - verdict.sent_ms)


def _share(times: list[int], share: float) -> int | None:
    """Return the least time within which this share of the messages came; None if there are none."""
    return times[ceil(share * len(times)) - 1] if times else None


MARK = "demo.lock"
"""File whose presence says that a demonstration made this folder; locked while one runs there."""
TABLES_FOLDER = "tables"
OURS = frozenset(
    [
        "audit.jsonl",
        "chain",
        "challenges.jsonl",
        "complaints.jsonl",
        "dmq-1",
        "dmq-2",
        "dmq-3",
        "full-node-status.json",
        "full-node.json",
        "full-node.socket",
        "genesis.tl",
        "inbox",
        "index.sqlite",
        "index.sqlite-shm",
        "index.sqlite-wal",
        "keys",
        "log",
        "network.json",
        "outbox",
        "pools.json",
        "spark.log",
        "tables",
        "topics",
        "validator-sets.json",
        "web-token.json",
    ]
) | {f"validator-{number}" for number in range(1, 8)}
"""Names that a demonstration, and the dashboard over its folder, may have left there."""


@contextmanager
def demo_folder(data: Path) -> Iterator[None]:
    """Hold the folder while the context lasts. `ConfigError` if it holds anything that no demonstration has
    made.
    """
    make_private(data, "data folder", advice="choose another folder with --data")
    names = {path.name for path in data.iterdir()} - {MARK}
    foreign = sorted(names - OURS)
    if foreign or (names and not (data / MARK).exists()):
        raise ConfigError(
            f"{data} is not empty and was not made by a demo: it holds {(foreign or sorted(names))[0]}",
            advice="choose another folder with --data, or move away what is in it",
        )
    lock = OwnerLock(data / MARK)
    try:
        for name in names:
            _remove(data / name)
        yield
    finally:
        lock.release()


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        raise StorageError(
            f"{path} of an earlier demo cannot be removed: {error.strerror}",
            advice="choose another folder with --data",
        ) from error
