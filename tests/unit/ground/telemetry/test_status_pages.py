"""Pages of a running node: the JSON that programs read today, name by name and in the same order."""

from __future__ import annotations

import json

import msgspec
import pytest

from stagepost.errors import TransportError
from stagepost.ground.telemetry import status as pages
from stagepost.ground.telemetry.status_reading import decoded

NAMES = {
    pages.MempoolStatus: "messages bytes messages_max bytes_max oldest_ms",
    pages.PeerStatus: "address direction state version profile flavour connected_s unacknowledged in_flight_bytes "
    "score first_announcer round_trip_ms last_violation",
    pages.EquivocatingPool: "count pool_id first second expires_at refused",
    pages.EquivocationStatus: "count refused pools",
    pages.PoolsStatus: "count fault works_with",
    pages.DmqNodePage: "version uptime_s network_magic ready mempool peers accepted expired_unseen rejections "
    "last_message_ms storage_fault clock_behind_s kes_periods_remaining equivocations pools parts "
    "kes_period_s",
    pages.HeldMessage: "index message_id pool_id expires_at received_ms source bytes",
    pages.HeldMessages: "entries next",
    pages.FullNodePage: "kind version uptime_s validators_linked messages finalized rejected receipts receipts_refused "
    "open unproved statuses statuses_waiting parts network disk",
    pages.ListeningStatus: "session part answered needed",
    pages.ValidatorPage: "kind version uptime_s full_nodes_linked master_block shards sessions listening messages "
    "refused parts network disk full_nodes in_set",
    pages.MemberStatus: "name address key_id linked silent_since_ms",
    pages.SessionStatus: "shard session members needed ends_ms",
    pages.NetworkStatus: "members sessions height last_final_ms open oldest_open_ms blamed halted",
    pages.DiskStatus: "fault free_bytes unread",
    pages.QueuedMessage: "index message_id shard status received_ms",
    pages.QueuedMessages: "entries next",
}


@pytest.mark.parametrize("page", NAMES, ids=lambda page: page.__name__)
def test_names_and_their_order_stay(page: type[msgspec.Struct]) -> None:
    assert [field.encode_name for field in msgspec.structs.fields(page)] == NAMES[page].split()


def test_every_page_is_in_the_list() -> None:
    declared = {
        kind
        for kind in vars(pages).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == pages.__name__
    }
    assert declared == NAMES.keys()


def test_a_page_of_an_earlier_node_is_read_with_what_it_has() -> None:
    told = {"version": "0.1", "uptime_s": 1.5, "network_magic": 7, "ready": True, "mempool": {"messages": 2}}
    page = decoded(json.dumps(told | {"of a later one": 1}).encode(), pages.DmqNodePage)
    assert (page.mempool.messages, page.peers, page.equivocations.count) == (2, (), 0)
    with pytest.raises(TransportError, match="cannot be read"):
        decoded(b'{"version": "0.1"}', pages.DmqNodePage)
