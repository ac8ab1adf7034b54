"""Walk the way of one message through the sources, and measure the house.

    python tools/walk.py            print the figures of the way and the measures of the sources
    python tools/walk.py --names    and the names behind those measures that count names

The way is written below as data: the functions that one message passes from `stagepost send` to the trace page, in order.
A function that is gone is an error, so that a rename or a move is followed here in the same change.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "stagepost"
SMALL_FILE_LINES = 60
"""Lines: a file of at most so many counts as small."""
RIDDLES = frozenset(
    ["What", "Who", "Whoever", "How", "One", "It", "Of", "As", "Whether", "Where", "When", "That", "Those"]
)
"""Words that no docstring begins with: they hide the noun."""

# Station: the module, then the functions of it that the message passes before it goes on. Same module again where it returns.
WAY = """
The command
cli.send.command            send
cli.options.shared          socket_and_magic
cli.options.delivery        publisher_config
cli.send.reliably           deliver DeliverySession.open
dmq.keys.signing_pair       load_signing_pair

The publisher
delivery.shell.publisher    ReliablePublisher.publish_with_ack
delivery.shell.acceptance   Acceptance.take_and_wait
delivery.publisher          PublisherCore.offer
delivery.offers             Offers.admit
delivery.outbox             Outbox.add
delivery.publisher          PublisherCore.accept_to_send
delivery.settlement         Settlement.take_effects
delivery.shell.sender       Sender.perform
delivery.stores.outbox_stores OutboxRows.insert
delivery.stores.outbox_rules OutboxBook.insert
ground.storage.group_writer GroupWriter.do
ground.storage.table_file   TableFile.commit
ground.storage.sqlite_file  SqliteFile.write
delivery.shell.acceptance   Acceptance._accept
delivery.shell.sender       Sender._flush_forever Sender._take_next
delivery.attempts           Attempts.begin_send
delivery.outbox             Outbox.begin_send
delivery.shell.sender       Sender.hand_over

The signer
delivery.transports.dmq     DmqTransport.publish
delivery.transports.dmq_bodies data_body
delivery.envelope           DataEnvelope.encode
delivery.transports.dmq_sending DmqSubmitter.send
dmq.keys.signer             DmqSigner.sign
dmq.keys.signing_pair       SigningPair.sign
dmq.message                 sign_message
ground.crypto.kes           SigningKey.sign
delivery.transports.dmq_sending SubmissionConnections.submit

Into the DMQ node
dmq.endpoints.local_client  LocalClient.submit
dmq.endpoints.connection    LocalNode.open
dmq.endpoints.connection    initiate
dmq.endpoints.local_submission LocalMessageSubmissionClient.submit_message
ground.net.conversation     Conversation.send
ground.wire.codec           Codec.encode
ground.net.bearer           BearerChannel.write_now Bearer.buffer_updated
ground.wire.mux             SegmentReader.received
ground.wire.framing         Framer.next_item
ground.net.conversation     Conversation.receive
dmq.endpoints.local_submission LocalMessageSubmissionServer.run
dmq.node.local_service      LocalService._submit
dmq.node.intake             Intake.submit Intake._look
dmq.validation              MessageValidator.check_cheaply
dmq.node.intake             Intake._verify_claimed
ground.signatures.verifier  Verifier.verify
ground.signatures.worker    serve
dmq.validation              MessageValidator.claims MessageValidator.conclude
dmq.node.intake             Intake._judged Intake._commit
dmq.validation              MessageValidator.commit
dmq.mempool                 Mempool.insert
dmq.node.stored_messages    SqliteStore.write
dmq.node.stored_messages        MessageDraftBook.put
dmq.node.intake             Intake._written

Pulling by another node
dmq.node.supplier           Supplier._next_ids
dmq.supplying               SupplyCore.next_ids
dmq.node.puller             Puller._act Puller._ids_came
dmq.pulling                 PullCore.ids_arrived PullCore.next_action
dmq.downloads               Downloads.claim
dmq.node.supplier           Supplier._messages
dmq.supplying               SupplyCore.messages
dmq.node.puller             Puller._messages_came
dmq.pulling                 PullCore.messages_arrived
dmq.node.intake             Intake.offer Intake._hold
dmq.node.mempool_feed       MempoolFeed.take
dmq.endpoints.local_notification LocalMessageNotificationServer._answer_next LocalMessageNotificationClient.request_messages_blocking

The receiver at the full node
dmq.endpoints.message_stream MessageStream.__anext__
delivery.transports.dmq     DmqTransport._receive
delivery.transports.dmq_bodies read_body
delivery.envelope           read_data_envelope
delivery.shell.receiver     Receiver._incoming
delivery.receiver           ReceiverCore.received
delivery.shell.receiver     Receiver._handle
full_node.from_delivery     DeliveryIntake.handle

The full node
full_node.full_node         FullNode.submit FullNode.receive
chain.ledger                EmbeddedLedger.dry_run
chain.messages              read_message
full_node.full_node         FullNode._send
remp.message                RempMessage.signed_bytes
ground.crypto.ed25519       sign
remp.message                RempMessage.encode
full_node.staged_sending   StagedSending.begin
full_node.full_node         FullNode._perform
full_node.links             DiallingFullNodeLinks.send
remp.links.link             Link.say
full_node.full_node         FullNode._publish
full_node.status_topic      StatusTopic.publish

The validators' queue
remp.links.link             Link._hear
validator.links             ReceiptLink.heard
validator.sessions          Validator.message_came Validator._take
validator.session_runner    SessionRunner.offer
validator.session_store     SessionStore.put_body
remp.queue.reliable_queue   ReliableQueue.offer
remp.queue.state            QueueState.enter QueueState.broadcast
remp.queue.message_cache    MessageCache.add
validator.session_runner    SessionRunner.perform
catchain.member             Member._speak
remp.queue.reliable_queue   ReliableQueue.next_payload
remp.queue.records          encode_payload
catchain.member             Member._make
catchain.block              Block.encode
validator.session_runner    SessionRunner._perform
validator.session_store     SessionStore.put_block
validator.validator         QueueChannel.push
remp.links.switchboard      Channel.push
remp.links.overlay_links    OverlayLinks.push OverlayLink.heard
remp.links.switchboard      Switchboard.object_came
validator.session_runner    SessionRunner.pushed
catchain.member             Member.frame_received
catchain.graph              Graph.receive
remp.queue.reliable_queue   ReliableQueue.block_delivered
remp.queue.hearing          RecordIntake.block_delivered
remp.queue.body_search      BodySearch.begin
validator.session_runner    SessionRunner._body_came
remp.queue.reliable_queue   ReliableQueue.body_came

Collation and agreement
validator.validator         RempValidator.take
validator.queue_bridge      QueueBridge.take
remp.queue.reliable_queue   ReliableQueue.take
remp.queue.collation        Collation.take
chain.node.validator        ChainValidator.propose
chain.node.block_making     BlockMaker.payload
chain.ledger                EmbeddedLedger.collate
chain.shard_blocks          make_block
chain.execution             Execution.take
chain.contracts             run
chain.node.agreement_runner AgreementRunner.proposed
chain.agreement.member      Member.proposed
chain.agreement.ballot      Ballot.propose
chain.node.agreement_runner AgreementRunner._do AgreementRunner.pushed
chain.agreement.member      Member.frame_received
chain.agreement.hearing     BookKeeper.hear_proposal
chain.node.validator        ChainValidator.check
chain.node.candidate_judging CandidateJudge.check
validator.validator         RempValidator._check_messages
chain.node.agreement_runner AgreementRunner.checked
chain.agreement.member      Member.checked
chain.agreement.ballot      Ballot.vote
chain.agreement.hearing     BookKeeper.hear_vote
chain.agreement.member      Member._finalise
chain.node.validator        ChainValidator.finalised
chain.node.follower         ChainFollower.agreed
chain.node.store            ChainStore.keep_block
chain.following             FollowedChain.finalised
validator.validator         RempValidator._heard
validator.queue_bridge      QueueBridge.heard
remp.queue.reliable_queue   ReliableQueue.shard_committed
remp.queue.collation        Collation.shard_committed
remp.queue.state            QueueState.set_status

Receipts
validator.receipts          ReceiptSender.tell ReceiptSender._receipt
remp.receipts.receipt       Receipt.signed_bytes Receipt.with_signature
validator.receipts          Statements.say
validator.packing       PacketQueue.add
validator.receipts          ReceiptSender._send
validator.packing       PacketQueue.packets
remp.receipts.compact       CombinedReceipt.encode
validator.links             ListeningValidatorLinks.tell
full_node.links             MessageLink.heard
full_node.full_node         FullNode.receipts_came
remp.receipts.compact       CombinedReceipt.decode
full_node.receipt_checks    ReceiptChecks.check ReceiptJudge.check ReceiptChecks._answered
full_node.full_node         FullNode._receipt_checked
full_node.staged_sending   StagedSending.receipt_came
full_node.full_node         FullNode._block_is_final FullNode._finalize
full_node.message_record    MessageRecord.step
full_node.full_node         FullNode._report_end

The topic
full_node.status_topic      StatusTopic.publish
remp.receipts.receipt       Receipt.to_json
topics.log.file_topic       FileTopicWriter.append_soon
topics.log.group_commit     GroupCommit.append
topics.log.partition_log    PartitionLog.append
topics.log.block            write_block
full_node.status_topic      StatusTopic._appended

The acknowledgement
full_node.from_delivery     DeliveryIntake.heard
delivery.shell.receiver     Receiver._answer
delivery.transports.dmq     DmqTransport.publish_acks
delivery.shell.sender       Sender._incoming
delivery.publisher          PublisherCore.receipts
delivery.answers            Answers.receive
delivery.settlement         Settlement.settle
cli.send.reliably           ProgressLines.note

The pipeline
pipeline.sources.topic_source TopicStreamReader.read
pipeline.sources.topic_source read_range
topics.log.file_topic       FileTopicReader.batches
pipeline.stream             Following.take
pipeline.driver             Driver.take
pipeline.steps.checked_files CheckedFiles.take
pipeline.steps.record_checks RecordChecks.check
remp.receipts.receipt       check
pipeline.steps.partial_state PartialState.add
pipeline.driver             Driver.refresh
pipeline.steps.messages     show_state of_moment at_moment
pipeline.tables.tables      Tables.commit Tables.publish
pipeline.tables.delta       LakeTable.commit

The trace page
web.api                     traced
trace.reading               read_trace records_of_key
remp.verdict.trace          trace_of
remp.verdict.verdict        evaluate
trace.view                  trace_view
trace.drawing               draw_trace
web.pages                   trace
"""


@dataclass(frozen=True)
class Step:
    """One function on the message's way: its module below the package, and its name there."""

    module: str
    name: str

    @property
    def room(self) -> str:
        return self.module.partition(".")[0]

    @property
    def package(self) -> str:
        return self.module.rpartition(".")[0]

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


@dataclass(frozen=True)
class Walk:
    """Figures of the way. A change of room or package is counted between a step and the next one."""

    calls: int
    files: int
    room_changes: int
    package_changes: int


@dataclass(frozen=True)
class House:
    """Measures of the sources. Names are listed where a reader may want to look at them."""

    files: int
    lines: int
    most_files_in_a_folder: int
    top_entries: int
    small_files: list[str]
    repeated_classes: list[str]
    lone_subclasses: list[str]
    casts: int
    riddles: list[str]


def read_way(text: str = WAY) -> list[Step]:
    """Return the steps of `text`. A line whose first word has no dot is a heading."""
    lines = (line.split() for line in text.splitlines())
    return [Step(words[0], name) for words in lines if words and "." in words[0] for name in words[1:]]


def measure_walk(way: Sequence[Step]) -> Walk:
    pairs = list(pairwise(way))
    return Walk(
        len(way),
        len({step.module for step in way}),
        sum(one.room != other.room for one, other in pairs),
        sum(one.package != other.package for one, other in pairs),
    )


def gone(way: Iterable[Step], trees: Mapping[str, ast.Module]) -> list[str]:
    """Return a sentence for each step that the sources do not define, with the places that define such a name today."""
    defined = {module: {name for name, _ in definitions(tree)} for module, tree in trees.items()}
    found: list[str] = []
    for step in dict.fromkeys(way):
        if step.name not in defined.get(step.module, ()):
            last = step.name.rpartition(".")[2]
            alike = sorted(
                f"{module}:{name}"
                for module, names in defined.items()
                for name in names
                if name.rpartition(".")[2] == last
            )
            found.append(f"{step} is gone; {last} is defined by: {', '.join(alike[:5]) or 'nobody'}")
    return found


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    """Return every class and function of a module with its qualified name, `Class.function`; those in functions too."""
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        prefix, parent = waiting.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, Definition):
                yield prefix + node.name, node
                waiting.append((f"{prefix}{node.name}.", node))
            elif isinstance(node, ast.stmt):
                waiting.append((prefix, node))


def read_sources(root: Path = SOURCES) -> dict[str, str]:
    """Return the text of each module, by its name below the package."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path.read_text()
        for path in sorted(root.rglob("*.py"))
    }


def measure_house(texts: Mapping[str, str], trees: Mapping[str, ast.Module], top_entries: int) -> House:
    folders = Counter(module.rpartition(".")[0] for module in texts)
    return House(
        files=len(texts),
        lines=sum(len(text.splitlines()) for text in texts.values()),
        most_files_in_a_folder=max(folders.values(), default=0),
        top_entries=top_entries,
        small_files=small_files(texts),
        repeated_classes=repeated_classes(trees),
        lone_subclasses=lone_subclasses(trees),
        casts=sum(
            len(re.findall(r"(?<!\.)\bcast\(", text)) for text in texts.values()
        ),  # a column has a `.cast(` too
        riddles=riddles(trees),
    )


def small_files(texts: Mapping[str, str]) -> list[str]:
    """Return the modules of few lines. An `__init__` may be short."""
    return [
        module
        for module, text in texts.items()
        if not module.endswith("__init__") and len(text.splitlines()) <= SMALL_FILE_LINES
    ]


def code_lines(text: str, tree: ast.Module) -> int:
    """Count the lines that are neither blank, nor comment alone, nor part of a string that stands for itself."""
    alone: set[int] = set()
    within_a_string: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            alone |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            within_a_string |= set(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    return sum(
        bool(line.strip()) and (number in within_a_string or not line.lstrip().startswith("#"))
        for number, line in enumerate(text.splitlines(), 1)
        if number not in alone
    )


def repeated_classes(trees: Mapping[str, ast.Module]) -> list[str]:
    """Return the names of classes that two or more modules define, each with its modules."""
    modules: dict[str, list[str]] = {}
    for module, tree in trees.items():
        for name in {node.name for _, node in definitions(tree) if isinstance(node, ast.ClassDef)}:
            modules.setdefault(name, []).append(module)
    return [f"{name}: {', '.join(found)}" for name, found in sorted(modules.items()) if len(found) > 1]


def lone_subclasses(trees: Mapping[str, ast.Module]) -> list[str]:
    """Return the classes of ours that exactly one class inherits from. Protocols and errors may have a single heir."""
    classes = [
        node for tree in trees.values() for _, node in definitions(tree) if isinstance(node, ast.ClassDef)
    ]
    bases = {node.name: {_last_name(base) for base in node.bases} for node in classes}
    heirs = Counter(_last_name(base) for node in classes for base in node.bases)

    def is_let_through(name: str) -> bool:
        above = bases.get(name, set())
        return "Protocol" in above or name.endswith(("Error", "Exception")) or any(map(is_let_through, above))

    return sorted(name for name in bases if heirs[name] == 1 and not is_let_through(name))


def _last_name(base: ast.expr) -> str:
    """Return the last name of a base class: `Base` of `Base`, `module.Base` and `Base[Item]`."""
    if isinstance(base, ast.Subscript):
        return _last_name(base.value)
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""


def riddles(trees: Mapping[str, ast.Module]) -> list[str]:
    """Return the docstrings of modules, classes and functions that begin with a word without a noun."""
    found: list[str] = []
    for module, tree in trees.items():
        for node in (tree, *(node for _, node in definitions(tree))):
            words = (ast.get_docstring(node, clean=False) or "").split(maxsplit=1)
            if words and words[0].rstrip(",.:;") in RIDDLES:
                found.append(f"{module}:{getattr(node, 'lineno', 1)}: {words[0]} …")
    return found


def table(walk: Walk, house: House, lines_of_code: int, top_of_tests: int) -> str:
    """Return both groups of figures beside the aims; what is countable and has no aim is printed alone."""
    rows = [
        ("calls on the message's way", walk.calls, ""),
        ("files on the message's way", walk.files, ""),
        ("changes of room on the message's way", walk.room_changes, "≤ 55"),
        ("changes of package on the message's way", walk.package_changes, ""),
        ("source files", house.files, "≤ 480"),
        ("lines in all", house.lines, ""),
        ("lines without comments, docstrings and blank lines", lines_of_code, "≤ 72,000"),
        ("most files in one folder", house.most_files_in_a_folder, "≤ 25"),
        ("entries at the top", house.top_entries, "≤ 20"),
        (f"files of at most {SMALL_FILE_LINES} lines", len(house.small_files), "≤ 50"),
        ("class names in two or more modules", len(house.repeated_classes), "≤ 25"),
        ("classes with exactly one subclass", len(house.lone_subclasses), "≤ 3"),
        ("cast( in the sources", house.casts, "≤ 15"),
        ("docstrings that begin with a word without a noun", len(house.riddles), "≤ 60"),
        (".py at the top of tests", top_of_tests, "≤ 2"),
    ]
    return "\n".join(f"{name:52} {value:>8,}  {aim}".rstrip() for name, value, aim in rows)


def count_top_entries(root: Path = SOURCES) -> int:
    beside = {"__init__.py", "py.typed", "__pycache__"}
    return sum(path.name not in beside for path in root.iterdir())


def main(arguments: Sequence[str] = ()) -> int:
    texts = read_sources()
    way = read_way()
    trees = {module: ast.parse(text) for module, text in texts.items()}
    missing = gone(way, trees)
    for sentence in missing:
        print(sentence, file=sys.stderr)
    house = measure_house(texts, trees, count_top_entries())
    lines_of_code = sum(code_lines(texts[module], tree) for module, tree in trees.items())
    print(table(measure_walk(way), house, lines_of_code, len(list((ROOT / "tests").glob("*.py")))))
    if "--names" in arguments:
        for title, names in (
            ("small files", house.small_files),
            ("class names in two or more modules", house.repeated_classes),
            ("classes with exactly one subclass", house.lone_subclasses),
            ("docstrings that begin with a word without a noun", house.riddles),
        ):
            print("\n".join(["", title, *(f"  {name}" for name in names)]))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
