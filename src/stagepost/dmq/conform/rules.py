"""Rules that a DMQ node is tried by: for each a name, one sentence, and the document that states it.

Names are stable; reports and the table in docs/conform.md use them. A rule whose source is `OWN` is Stagepost's own
limit: no document asks for it, so a node that does otherwise differs, and breaks nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

OWN = "Stagepost's own limit"
_MUX = "network-mux: framing"
_INGRESS = "ouroboros-network: ingress queue limits"
_HANDSHAKE = "ouroboros-network: handshake, CDDL and codec"
_CDDL = "CIP-0137, CDDL"
_SUBMISSION = "CIP-0137, Message Submission mini-protocol"
_LOCAL_SUBMISSION = "CIP-0137, Local Message Submission mini-protocol"
_NOTIFICATION = "CIP-0137, Local Message Notification mini-protocol"
_MESSAGE = "CIP-0137, Message authentication mechanism"
_SMALL = "ouroboros-network: keep-alive and peer sharing"
_DMQ_NODE = "dmq-node: limits"


@dataclass(frozen=True)
class ConformRule:
    name: str
    text: str
    source: str

    @property
    def is_own(self) -> bool:
        """Return whether no document asks for it."""
        return self.source == OWN


# fmt: off
_TABLE = (
    ("mux.empty", "A segment without payload ends the connection.", _MUX),
    ("mux.unknown", "A protocol number, or a direction of it, that nobody runs on this connection ends the connection.", _MUX),
    ("mux.borders", "The borders of segments carry no meaning: a message may come in segments of one byte.", _MUX),
    ("mux.long-segment", "A segment of 65,535 bytes is read.", _MUX),
    ("mux.ingress", "More bytes than the ingress limit of a mini-protocol end the connection.", _INGRESS),
    ("mux.ingress-early", "A segment header that announces more than the ingress limit ends the connection at once.", OWN),
    ("mux.ingress-local", "More than 1 MiB of requests that wait on a local mini-protocol end the connection.", OWN),
    ("mux.segment-time", "A segment that has begun is complete within 30 s, or the connection ends.", _MUX),
    ("mux.start-time", "After the handshake the other side starts a mini-protocol within 30 s, or the connection ends.", "ouroboros-network: inbound governor"),
    ("mux.end", "The end of the stream ends the connection; nothing else follows from it.", _MUX),
    ("handshake.choice", "The highest version that both sides know is agreed; data of unknown versions may have any shape.", _HANDSHAKE),
    ("handshake.query", "A proposal with query true is answered with the table of versions, and the connection ends.", _HANDSHAKE),
    ("handshake.no-version", "Without a common version the answer is Refuse with VersionMismatch and the known versions.", _HANDSHAKE),
    ("handshake.network", "A proposal of another network is refused with the reason Refused.", _HANDSHAKE),
    ("handshake.order", "The versions of a proposal are a definite map with strictly ascending keys.", _HANDSHAKE),
    ("handshake.data", "Version data of a wrong shape are refused with the reason HandshakeDecodeError.", _HANDSHAKE),
    ("handshake.state", "The initiator says one proposal, first and alone; anything else ends the connection.", _HANDSHAKE),
    ("handshake.size", "A handshake message longer than 5,760 bytes ends the connection.", _HANDSHAKE),
    ("handshake.time", "A handshake between nodes that takes more than 10 s ends the connection.", _HANDSHAKE),
    ("handshake.strict", "A proposal with surplus bytes, of absurd length or depth ends the connection at once.", OWN),
    ("handshake.time-local", "A handshake on the local socket that takes more than 10 s ends the connection.", OWN),
    ("cbor.malformed", "Bytes that are not well-formed CBOR end the connection.", _CDDL),
    ("cbor.shape", "A protocol message of another shape than the CDDL's ends the connection.", _CDDL),
    ("cbor.size", "A protocol message longer than its state allows (65,535 bytes, or 98,000 with messages) ends the connection.", _DMQ_NODE),
    ("cbor.truncated", "A message that the end of the stream cuts short ends the connection.", _CDDL),
    ("cbor.shortest", "Integers and lengths of protocol messages are written in the shortest form.", OWN),
    ("cbor.early", "A message that must become too long, too deep or wrong ends the connection before it is complete.", OWN),
    ("keepalive.echo", "A keep-alive request is answered with its cookie, from 0 to 65,535.", _SMALL),
    ("keepalive.cookie", "A response with another cookie than the request's ends the connection.", _SMALL),
    ("keepalive.state", "A keep-alive message out of turn ends the connection.", _SMALL),
    ("keepalive.again", "After Done a new run of keep-alive may begin.", _SMALL),
    ("sharing.count", "A reply with more peers than were asked for ends the connection.", _SMALL),
    ("sharing.shape", "A peer sharing message of another shape than the CDDL's ends the connection.", _SMALL),
    ("sharing.state", "A peer sharing message out of turn ends the connection.", _SMALL),
    ("submission.ack", "A request acknowledges at most as many ids as are announced and not acknowledged.", _SUBMISSION),
    ("submission.window", "At most 132 ids are unacknowledged after a request is answered.", _DMQ_NODE),
    ("submission.nothing", "A blocking request asks for at least one id; a non-blocking one asks for or acknowledges one.", _SUBMISSION),
    ("submission.blocking", "A blocking request is allowed if no id is unacknowledged, and a non-blocking one only otherwise.", _SUBMISSION),
    ("submission.requested", "Only ids that are announced and not acknowledged are requested.", _SUBMISSION),
    ("submission.count", "A reply has at most as many ids as were requested.", _SUBMISSION),
    ("submission.empty", "A reply to a blocking request has at least one id.", _SUBMISSION),
    ("submission.served", "A reply with messages has requested messages only.", _SUBMISSION),
    ("submission.missing", "A supplier may leave out a requested message that it no longer has.", _SUBMISSION),
    ("submission.size", "The size of a message differs from the announced size by 32 bytes at most.", _DMQ_NODE),
    ("submission.huge", "An id with an absurd size is not downloaded, and the connection stays.", OWN),
    ("submission.state", "A message of submission out of turn, or of the other side, ends the connection.", _SUBMISSION),
    ("submission.done", "Done ends a run where its version allows it, and a new run may begin.", _SUBMISSION),
    ("submission.done-at-once", "A new run may begin in the same bytes as Done.", OWN),
    ("submission.done-idle", "In the documents' version the supplier may also say Done when it is not blocked.", "gouroboros 0.166, README of messagesubmission"),
    ("submission.idle", "There is no time limit for a request.", _DMQ_NODE),
    ("submission.messages-time", "Requested messages come within 10 s, or the connection ends.", _DMQ_NODE),
    ("submission.ids-time", "In version 2 a blocking request is answered within 20 s, or the connection ends.", _DMQ_NODE),
    ("submission.seed-time", "In the documents' version each state but Idle lasts 30 s at most.", "gouroboros 0.166, README of messagesubmission"),
    ("submission.announce", "A node announces each message that it holds once, with its true size.", _SUBMISSION),
    ("submission.bytes", "A node forwards a message byte for byte as it came.", _MESSAGE),
    ("submission.pull", "A node pulls what is announced to it and acknowledges it.", _SUBMISSION),
    ("submission.pull-again", "A node that pulls keeps asking while there is nothing new.", _SUBMISSION),
    ("message.checked", "A node checks a message's signatures before it accepts it.", _MESSAGE),
    ("message.id", "The id is the BLAKE2b-256 hash of the payload's bytes.", _MESSAGE),
    ("message.expired", "An expired message is refused (reason 2 on the local socket); a peer that relays it stays.", _MESSAGE),
    ("message.far", "A message that expires in 1,800 s or later is refused, and a peer that relays it is cut off.", _MESSAGE),
    ("message.period", "The KES period lies in the range of the operational certificate.", _MESSAGE),
    ("message.pool", "The pool has stake in the set snapshot; a message of another pool is refused, and a relay stays.", _MESSAGE),
    ("message.counter", "The issue number is not lower than one seen before; a lower one is rejected.", _MESSAGE),
    ("message.counter-relay", "A relay that brings a lower issue number stays connected.", OWN),
    ("message.opcert", "The cold key has signed KES key, issue number and start period (48 bytes).", _MESSAGE),
    ("message.kes", "The KES signature over the payload's bytes is valid at period minus start period.", _MESSAGE),
    ("message.body", "The body has 90 to 2,000 bytes.", _DMQ_NODE),
    ("message.layout", "A message has the five elements of the CDDL, definite, each of its length.", _CDDL),
    ("message.duplicate", "A message that is held is refused (reason 1 on the local socket); a relay stays.", _MESSAGE),
    ("local.accept", "A valid message that a program submits is accepted.", _LOCAL_SUBMISSION),
    ("local.reason", "Reasons AlreadyReceived and Expired have exactly one element.", _LOCAL_SUBMISSION),
    ("local.on", "After a refusal the conversation goes on.", _LOCAL_SUBMISSION),
    ("local.state", "A word of the other side ends the connection.", _LOCAL_SUBMISSION),
    ("local.idle", "There is no time limit for a submission that has begun.", _DMQ_NODE),
    ("local.pipelined", "Submissions that come before the answers are answered in order.", OWN),
    ("local.after-done", "A new run may follow Done; bytes that begin none end the connection.", OWN),
    ("notification.tell", "An accepted message is told to every program once, as it came, in the order of arrival.", _NOTIFICATION),
    ("notification.shape", "Replies are [1, list, more] and, when blocking, [2, list]; lists have indefinite length.", _NOTIFICATION),
    ("notification.blocking", "A blocking reply waits for a message and is not empty.", _NOTIFICATION),
    ("notification.state", "A word of the other side ends the connection.", _NOTIFICATION),
    ("client.version", "An initiator leaves if a version is accepted that it did not propose.", _HANDSHAKE),
    ("client.network", "An initiator leaves if its proposal is accepted for another network.", _HANDSHAKE),
    ("client.refused", "An initiator leaves after a refusal.", _HANDSHAKE),
    ("client.time", "An initiator between nodes waits 10 s for the answer to its proposal.", _HANDSHAKE),
    ("client.time-local", "A program waits 10 s for the answer to its proposal.", OWN),
    ("client.shape", "An answer that is not CBOR, or of another shape than the CDDL's, ends the connection.", _CDDL),
    ("client.state", "An answer out of turn, or to another question, ends the connection.", _CDDL),
    ("client.strict", "An answer with surplus bytes or an endless text ends the connection.", OWN),
    ("client.early", "An answer that must become too long ends the connection before it is complete.", OWN),
    ("client.answered", "A program reads every answer to its submission, and goes on or says Done.", _LOCAL_SUBMISSION),
    ("client.told", "A program reads every reply with messages, and goes on or says Done.", _NOTIFICATION),
    ("load.served", "Honest programs and peers are served during and after every case.", "CIP-0137, resource limits"),
    ("load.memory", "The whole run costs the node at most 256 MiB of memory.", OWN),
)
# fmt: on
RULES = {name: ConformRule(name, text, source) for name, text, source in _TABLE}
SERVED, MEMORY = RULES["load.served"], RULES["load.memory"]
