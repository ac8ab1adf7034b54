"""The fuzz targets by name: one per decoder, small ones together."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from stagepost.dmq.profiles import MiniProtocol
from tests.fuzz import samples
from tests.fuzz.checks_agreement import agreement_samples, check_agreement
from tests.fuzz.checks_capture import capture_samples, check_capture
from tests.fuzz.checks_cardano import cardano_samples, check_cardano
from tests.fuzz.checks_chain import chain_samples, check_chain
from tests.fuzz.checks_delivery import check_envelope, envelope_samples
from tests.fuzz.checks_dmq import check_handshake, check_message, conversation_check, places
from tests.fuzz.checks_links import check_links, link_samples
from tests.fuzz.checks_mithril import check_mithril, mithril_samples
from tests.fuzz.checks_remp import check_remp, remp_samples
from tests.fuzz.checks_texts import check_texts, text_samples
from tests.fuzz.checks_wire import check_cbor, check_mux, check_tl, tl_samples
from tests.fuzz.harness import Target, Verdict


def _cbor() -> Target:
    seeds = (
        *samples.messages(),
        *samples.handshake_messages(),
        *samples.submission_messages(),
        b"\x9f\x9f\x01\xff\x80\xff",
        b"\xbf\x61a\x01\xff\x5f\x41a\x41b\xff\xc1\x1a\x00\x00\x00\x01",
    )
    return Target("cbor", seeds, check_cbor)


def _conversation(name: str, seeds: tuple[bytes, ...], *protocols: MiniProtocol) -> Target:
    versions = (1, 2) if MiniProtocol.MESSAGE_SUBMISSION in protocols else (1,)
    return Target(name, seeds, conversation_check(places(*protocols, versions=versions)))


def _validators() -> Target:
    def check(data: bytes) -> Verdict:
        return max(check_remp(data), check_chain(data), check_agreement(data))

    return Target("validators", (*remp_samples(), *chain_samples(), *agreement_samples()), check)


_MAKERS: dict[str, Callable[[], Target]] = {
    "cbor": _cbor,
    "message": lambda: Target("message", samples.messages(), check_message),
    "handshake": lambda: Target("handshake", samples.handshake_messages(), check_handshake),
    "submission": lambda: _conversation(
        "submission", samples.submission_messages(), MiniProtocol.MESSAGE_SUBMISSION
    ),
    "local-submission": lambda: _conversation(
        "local-submission", samples.local_submission_messages(), MiniProtocol.LOCAL_MESSAGE_SUBMISSION
    ),
    "local-notification": lambda: _conversation(
        "local-notification", samples.local_notification_messages(), MiniProtocol.LOCAL_MESSAGE_NOTIFICATION
    ),
    "upkeep": lambda: _conversation(
        "upkeep", samples.upkeep_messages(), MiniProtocol.KEEP_ALIVE, MiniProtocol.PEER_SHARING
    ),
    "cardano": lambda: Target("cardano", cardano_samples(), check_cardano),
    "mithril": lambda: Target("mithril", mithril_samples(), check_mithril),
    "mux": lambda: Target("mux", samples.streams(), check_mux),
    "tl": lambda: Target("tl", tl_samples(), check_tl),
    "inspector": lambda: Target("inspector", capture_samples(), check_capture),
    "links": lambda: Target("links", link_samples(), check_links),
    "texts": lambda: Target("texts", text_samples(), check_texts),
    "envelope": lambda: Target("envelope", envelope_samples(), check_envelope),
    "validators": _validators,
}

TARGET_NAMES = tuple(_MAKERS)
# Targets whose accepted inputs are read by cbor2 as well: their counts stand for promise N2.
COMPARED_TARGETS = (
    "cbor",
    "message",
    "handshake",
    "submission",
    "local-submission",
    "local-notification",
    "upkeep",
    "cardano",
    "envelope",
)


@cache
def target(name: str) -> Target:
    """Made when first asked for: the samples need keys, and keys take a moment."""
    return _MAKERS[name]()
