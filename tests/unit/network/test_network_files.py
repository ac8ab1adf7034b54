"""Cards, the founding of a network, proposals and approvals: what is made is accepted, and what is changed is refused."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from stagepost.chain.configuration import Configuration, Ordering
from stagepost.chain.genesis import first_states
from stagepost.errors import ConfigError, ConfigFaults, StorageError
from stagepost.full_node.network import RempNetwork, load_network
from stagepost.ground.crypto import ed25519
from stagepost.network.approvals import (
    APPROVED_FOLDER,
    APPROVED_MAX,
    ApprovedProposals,
    withdraw,
    write_approved,
)
from stagepost.network.cards import MemberCard, faults_in_card, load_card, make_card
from stagepost.network.changes import (
    ADDED_MAX,
    ChangeApproval,
    ChangeProposal,
    SetChange,
    approve,
    approving,
    faults_in_approval,
    faults_in_joining,
    faults_in_proposal,
    faults_in_reach,
    has_taken_effect,
    joined,
    keys_of,
    propose,
    settings_changed,
)
from stagepost.network.founding import FoundingTerms, found_network, shard_session_size

NOW_MS = 1_790_000_000_000
LATER_MS = NOW_MS + 600_000


def seed_of(name: str) -> bytes:
    return sha256(name.encode()).digest()


def card(name: str, port: int, *, is_validator: bool = True) -> MemberCard:
    return make_card(seed_of(name), name, "10.0.0.1", port, is_validator=is_validator)


def cards(validators: int) -> dict[str, MemberCard]:
    found = {f"v{n}.json": card(f"v{n}", 4_000 + n) for n in range(1, validators + 1)}
    return {**found, "full.json": card("full", 5_000, is_validator=False)}


def founded(validators: int = 4) -> RempNetwork:
    return found_network(cards(validators), FoundingTerms(name="n", network_magic=7, begins_ms=NOW_MS))


def added(network: RempNetwork, *names: str, remove: tuple[str, ...] = ()) -> ChangeProposal:
    new = tuple(card(name, 6_000 + place) for place, name in enumerate(names))
    change = SetChange(from_ms=LATER_MS, add=new, remove=remove)
    return propose(network, network.chain.configuration, change, seed_of("v1"))


def texts(faults: object) -> str:
    return repr(faults)


# Cards


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", "v2", "signature"),
        ("name", "No Blanks", "name"),
        ("host", "10.0.0.2", "signature"),
        ("host", "a b", "host"),
        ("host", "0.0.0.0", "host"),
        ("port", 4_002, "signature"),
        ("port", 0, "port"),
        ("port", 65_536, "port"),
        ("is_validator", False, "signature"),
        ("public_key", "00" * 32, "signature"),
        ("public_key", "AB", "public_key"),
        ("signature", "00" * 64, "signature"),
        ("stagepost_member", 2, "stagepost_member"),
    ],
)
def test_a_card_with_one_field_changed_is_refused(field: str, value: object, said: str) -> None:
    good = card("v1", 4_001)
    assert faults_in_card(good) == []
    assert [one.where for one in faults_in_card(msgspec.structs.replace(good, **{field: value}))] == [said]


def test_a_card_file_names_all_its_faults(tmp_path: Path) -> None:
    path = tmp_path / "member.json"
    path.write_bytes(
        msgspec.json.encode(msgspec.structs.replace(card("v1", 4_001), port=0, host="", name=""))
    )
    with pytest.raises(ConfigFaults) as refused:
        load_card(path)
    assert [one.where for one in refused.value.faults[str(path)]] == ["name", "host", "port"]


def test_a_key_that_is_no_point_of_the_curve_signs_no_card() -> None:
    """A key of small order would accept signatures that nobody made."""
    weak = msgspec.structs.replace(card("v1", 4_001), public_key="01" + "00" * 31)
    assert [one.where for one in faults_in_card(weak)] == ["signature"]


# Founding


def test_the_same_cards_give_the_same_network_in_any_order(tmp_path: Path) -> None:
    some = cards(4)
    terms = FoundingTerms(name="n", network_magic=7, begins_ms=NOW_MS)
    network = found_network(some, terms)
    assert found_network(dict(reversed(some.items())), terms) == network
    network.write(tmp_path / "network.json")
    assert load_network(tmp_path / "network.json") == network
    assert first_states(network.chain).master.configuration == network.chain.configuration
    assert [one.name for one in network.members] == ["v1", "v2", "v3", "v4", "full"]


@pytest.mark.parametrize("name", ["a\x1b[31mb", "a\u202eb", "a\nb", "a\udcff"])
def test_a_network_or_member_with_a_name_that_cannot_be_printed_is_refused(name: str) -> None:
    terms = FoundingTerms(name=name, network_magic=7, begins_ms=NOW_MS)
    with pytest.raises(ConfigFaults, match="cannot be printed"):
        found_network(cards(4), terms)
    with pytest.raises(ConfigFaults, match="inner hyphens"):
        make_card(seed_of("x"), name, "h", 1, is_validator=True)


def test_founding_names_every_fault_at_once() -> None:
    some = {
        "a": card("v1", 4_001),
        "b": card("v1", 4_002),
        "c": card("v2", 4_001),
        "d": make_card(seed_of("v2"), "v3", "10.0.0.9", 1, is_validator=True),
    }
    with pytest.raises(ConfigFaults) as refused:
        found_network(some, FoundingTerms(name="", network_magic=-1, begins_ms=NOW_MS))
    (faults,) = refused.value.faults.values()
    assert {one.where for one in faults} == {
        *("name", "public_key", "address", "members", "network_magic", "configuration")
    }


@pytest.mark.parametrize(
    ("validators", "size"),
    [(1, 0), (4, 0), (6, 0), (7, 5), (9, 5), (10, 5), (11, 7), (21, 11), (22, 11), (23, 13), (100, 51)],
)
def test_shard_sessions_are_half_of_the_set_odd_and_at_least_five(validators: int, size: int) -> None:
    assert shard_session_size(validators) == size
    assert size == 0 or (size % 2 == 1 and size >= max(5, validators / 2))


def test_a_network_with_cells_says_that_messages_need_no_expiry() -> None:
    network = found_network(
        cards(4), FoundingTerms(name="n", network_magic=7, begins_ms=NOW_MS, takes_cells=True)
    )
    assert network.chain.configuration.takes_cells
    assert not network.chain.configuration.must_expire


# Proposals


def test_a_proposal_adds_members_and_is_accepted_once_its_members_are_known() -> None:
    network = founded()
    proposal = added(network, "v5", "v6", "v7")
    base = network.chain.configuration
    assert faults_in_proposal(proposal, network, base) == []
    assert len(faults_in_reach(proposal, network)) == 3
    after = joined(network, proposal.added)
    assert faults_in_reach(proposal, after) == []
    assert after.members[: len(network.members)] == network.members
    assert joined(after, proposal.added) == after
    following = proposal.proposed.next
    assert following is not None
    assert len(following.validators) == 7
    assert proposal.proposed.shard_validators == 5
    assert faults_in_proposal(proposal, after, base) == []


def test_a_set_without_a_quorum_of_the_old_one_is_refused() -> None:
    network = founded(7)
    assert added(network, remove=("v1", "v2")).proposed.next is not None
    with pytest.raises(ConfigFaults, match="keeps 4 of 7 validators; 5 must stay"):
        added(network, remove=("v1", "v2", "v3"))


def test_the_next_set_begins_amid_a_session() -> None:
    """Session ends are multiples of their life; two changes of sessions in a row would close messages in flight."""
    network = founded()
    base = network.chain.configuration
    for wish_ms in (LATER_MS, LATER_MS + 1, LATER_MS + 124_999, LATER_MS + 249_999):
        change = SetChange(from_ms=wish_ms, add=(card("v5", 6_000),))
        following = propose(network, base, change, seed_of("v1")).proposed.next
        assert following is not None
        assert wish_ms <= following.from_ms < wish_ms + base.master_lifetime_ms
        assert following.from_ms % base.master_lifetime_ms == base.master_lifetime_ms // 2


def test_a_proposal_changes_the_set_that_follows_and_loses_nobody_who_was_to_join() -> None:
    """The set of an earlier proposal may still be to come when the next one is made."""
    network = founded()
    first = added(network, "v5")
    pending, known = first.proposed, joined(network, first.added)
    assert pending.next is not None

    def proposed(**change: object) -> Configuration:
        wish = SetChange(from_ms=LATER_MS, **change)  # type: ignore[arg-type]  # fields of the wish
        return propose(known, pending, wish, seed_of("v1")).proposed

    def keys_in(configuration: Configuration) -> set[bytes]:
        assert configuration.next is not None
        return keys_of(configuration.next)

    founders = {card(f"v{number}", 1).key for number in range(1, 5)}
    five, six = card("v5", 6_000).key, card("v6", 6_001)
    assert keys_in(proposed(add=(six,))) == founders | {five, six.key}
    assert keys_in(proposed(remove=("v4",))) == founders - {card("v4", 1).key} | {five}
    assert proposed(session_lifetime_ms=9_000).next == pending.next
    assert proposed(remove=("v5",)).next is None, "the set that was to follow does not come"
    with pytest.raises(ConfigFaults, match=f"{five.hex()} is not in the network file"):
        propose(network, pending, SetChange(from_ms=LATER_MS, add=(six,)), seed_of("v1"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"remove": ("full",)}, "full is not in the validator set, which has v1, v2, v3, v4"),
        ({"remove": ("v1\x1b",)}, r"'v1.x1b' is not a member"),
        ({"remove": ("v1", "v1")}, "v1 leaves more than once"),
        ({"add": (card("v1", 4_001),)}, "v1 is in the validator set already"),
        ({"add": (card("v2", 4_002),), "remove": ("v2",)}, "v2 is in the validator set already"),
        ({"add": (card("v5", 6_000), card("v5", 6_000))}, "v5 joins more than once"),
    ],
)
def test_a_wish_that_cannot_mean_what_it_says_is_refused(change: dict[str, object], said: str) -> None:
    network = founded()
    wish = SetChange(from_ms=LATER_MS, **change)  # type: ignore[arg-type]  # fields of the wish
    with pytest.raises(ConfigFaults, match=said):
        propose(network, network.chain.configuration, wish, seed_of("v1"))


def test_a_proposal_brings_so_many_members_and_no_more() -> None:
    """Each validator checks the signatures of all cards, and each operator has to look at them."""
    network = founded()
    some = tuple(card(f"f{number}", 7_000 + number, is_validator=False) for number in range(ADDED_MAX + 1))
    joining = added(network, "v5")
    fits = signed_anew(joining, added=(*joining.added, *some[: ADDED_MAX - 1]))
    too_many = signed_anew(joining, added=(*joining.added, *some[:ADDED_MAX]))
    assert faults_in_proposal(fits, network, network.chain.configuration) == []
    assert "a proposal brings at most 128" in texts(
        faults_in_proposal(too_many, network, network.chain.configuration)
    )
    assert "a proposal brings at most 128" in texts(faults_in_joining(network, too_many))


def test_a_validator_checks_an_approved_proposal_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks into the folder every second for as long as the change is awaited."""
    checks: list[bytes] = []
    network = founded()
    base, proposal, other = network.chain.configuration, added(network, "v5"), added(network, remove=("v4",))
    write_approved(tmp_path, proposal)
    verify = ed25519.verify

    def counted(key: bytes, signed: bytes, signature: bytes) -> bool:
        checks.append(key)
        return verify(key, signed, signature)

    monkeypatch.setattr("stagepost.network.changes.ed25519.verify", counted)
    reader = ApprovedProposals(tmp_path, joined(network, proposal.added))
    assert reader.wanted(base) == reader.wanted(base) == [proposal.proposed]
    assert len(checks) == 2, "of the card and of the proposal"
    write_approved(tmp_path, other)
    assert reader.wanted(base) == sorted([proposal.proposed, other.proposed], key=lambda one: one.hash)
    assert len(checks) == 5, "a new file is a reason to check all again"


def test_a_key_is_replaced_by_another_card() -> None:
    network = founded()
    proposal = added(network, "v2b", remove=("v2",))
    following = proposal.proposed.next
    assert following is not None
    keys = {one.public_key for one in following.validators}
    assert card("v2b", 6_000).key in keys
    assert card("v2", 4_002).key not in keys


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"network": "00" * 32}, "another network"),
        ({"base": "00" * 32}, "propose it anew"),
        ({"proposer": "v2"}, "is not that of v2"),
        ({"proposer": "nobody"}, "not a member"),
        ({"configuration": "00"}, "cannot be read"),
        ({"configuration": "zz"}, "cannot be read"),
        ({"added": ()}, "not that of a validator with a card"),
        ({"added": (msgspec.structs.replace(card("v5", 5_000), public_key="zz"),)}, "added v5: public_key"),
        ({"signature": "00" * 64}, "is not that of v1"),
        ({"stagepost_proposal": 1}, "this release reads 2: propose it anew"),
        ({"key_block": 3}, "stands upon key block 3; the newest is 0: propose it anew"),
    ],
)
def test_a_proposal_with_one_field_changed_is_refused(change: dict[str, object], said: str) -> None:
    network = founded()
    changed = msgspec.structs.replace(added(network, "v5"), **change)
    assert said in texts(faults_in_proposal(changed, network, network.chain.configuration))


def test_a_proposal_that_changes_the_set_in_force_is_refused() -> None:
    """Signed by a member, so only the rule is left to refuse it."""
    network = founded()
    base = network.chain.configuration
    proposal = added(network, "v5")
    following = proposal.proposed.next
    assert following is not None
    taken = msgspec.structs.replace(base, current=following)
    forged = msgspec.structs.replace(proposal, configuration=taken.encode().hex())
    assert "the next set alone" in texts(faults_in_proposal(forged, network, base))


def signed_anew(proposal: ChangeProposal, **change: object) -> ChangeProposal:
    """Change a proposal and sign it, as a dishonest member would."""
    bare = msgspec.structs.replace(proposal, signature="", **change)
    return msgspec.structs.replace(bare, signature=ed25519.sign(seed_of("v1"), bare.signed_bytes).hex())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"from_ms": 2**62, "until_ms": 2**63 - 1}, "after the end of the present one"),
        ({"until_ms": 2**63 - 1}, "is not planned for ten years"),
        ({"until_ms": LATER_MS + 250_000}, "is not planned for ten years"),
        ({"weight": 2}, "does not have the weight and id of its key"),
        ({"adnl": bytes(32)}, "does not have the weight and id of its key"),
    ],
)
def test_a_signed_proposal_of_a_strange_set_is_refused(change: dict[str, object], said: str) -> None:
    network = founded()
    base = network.chain.configuration
    proposal = added(network, "v5")
    following = proposal.proposed.next
    assert following is not None
    if "from_ms" in change or "until_ms" in change:
        following = msgspec.structs.replace(following, **change)
    else:
        first, *others = following.validators
        following = msgspec.structs.replace(
            following, validators=(msgspec.structs.replace(first, **change), *others)
        )
    strange = msgspec.structs.replace(proposal.proposed, next=following).encode().hex()
    forged = signed_anew(proposal, configuration=strange)
    assert said in texts(faults_in_proposal(forged, network, base))


def test_every_setting_that_a_proposal_changes_is_named() -> None:
    """Operators approve what they are shown, so a proposer must not be able to hide a change."""
    network = founded()
    base = network.chain.configuration
    assert settings_changed(base, added(network, "v5").proposed) == {}
    hidden = msgspec.structs.replace(
        base,
        skew_ms=60_000,
        takes_cells=True,
        must_expire=False,
        limits=msgspec.structs.replace(base.limits, messages_max=1),
        ordering=Ordering.HASH,
    )
    assert settings_changed(base, hidden) == {
        "skew_ms": "5000 -> 60000",
        "takes_cells": "False -> True",
        "must_expire": "True -> False",
        "limits.messages_max": "1000 -> 1",
        "ordering": "QUEUE -> HASH",
    }


def test_members_that_take_a_name_key_or_address_of_others_are_refused() -> None:
    network = joined(founded(), [make_card(seed_of("v9"), "v9", "Host", 9, is_validator=True)])
    for stolen, said in (
        (make_card(seed_of("x"), "v2", "10.0.0.8", 1, is_validator=True), "v2 is that of two members"),
        (make_card(seed_of("x"), "x", "10.0.0.1", 4_002, is_validator=True), "is that of v2 and of x"),
        (make_card(seed_of("x"), "x", "HOST", 9, is_validator=True), "host:9 is that of v9 and of x"),
    ):
        with pytest.raises(ConfigFaults, match=said):
            propose(
                network,
                network.chain.configuration,
                SetChange(from_ms=LATER_MS, add=(stolen,)),
                seed_of("v1"),
            )


def test_new_members_come_by_a_signed_proposal_and_full_nodes_by_their_card() -> None:
    network = founded()
    proposal = added(network, "v5")
    full = card("full-2", 5_001, is_validator=False)
    assert faults_in_joining(network, proposal) == []
    assert faults_in_joining(network, full) == []
    assert joined(network, [full]).members[-1] == full.member
    unsigned = msgspec.structs.replace(proposal, signature="00" * 64)
    elsewhere = signed_anew(proposal, network="00" * 32)
    stolen = make_card(seed_of("v2"), "again", "10.0.0.9", 1, is_validator=False)
    for source, said in (
        (unsigned, "is not that of v1"),
        (elsewhere, "another network"),
        (card("v5", 6_000), "it joins by a proposal"),
        (msgspec.structs.replace(full, port=5_002), "the card was changed"),
        (stolen, "is that of v2"),
    ):
        assert said in texts(faults_in_joining(network, source))


def test_a_stranger_proposes_and_approves_nothing() -> None:
    network = founded()
    with pytest.raises(ConfigError, match="not the key of a member"):
        propose(network, network.chain.configuration, SetChange(from_ms=LATER_MS), seed_of("x"))
    with pytest.raises(ConfigError, match="not the key of a member"):
        approve(added(network, "v5"), network, seed_of("x"))
    with pytest.raises(ConfigError, match="full is a full node"):
        approve(added(network, "v5"), network, seed_of("full"))


def test_a_proposal_that_has_taken_effect_is_not_to_be_made_anew() -> None:
    """Its set may be still to come, or at work."""
    network = founded()
    base = network.chain.configuration
    proposal = added(network, "v5")
    coming = proposal.proposed
    assert coming.next is not None
    at_work = msgspec.structs.replace(coming, current=coming.next, next=None)
    assert not has_taken_effect(proposal, network, base)
    for after in (coming, at_work):
        assert has_taken_effect(proposal, network, after)
        assert [one.text for one in faults_in_proposal(proposal, network, after)] == [
            "it is the one in force: nothing is left to approve"
        ]
    elsewhere = signed_anew(proposal, network="00" * 32)
    assert not has_taken_effect(elsewhere, network, coming)
    assert "another network" in texts(faults_in_proposal(elsewhere, network, coming))


def test_a_change_that_was_taken_back_is_not_wanted_again(tmp_path: Path) -> None:
    """After there and back the configuration has the same hash as at first. With both approvals in the folder, the network would
    change for ever."""
    network = founded()
    first = network.chain.configuration
    there = propose(network, first, SetChange(from_ms=LATER_MS, session_lifetime_ms=300_000), seed_of("v1"))
    back = SetChange(from_ms=LATER_MS, session_lifetime_ms=first.master_lifetime_ms)
    again = propose(network, there.proposed, back, seed_of("v1"), 57)
    assert again.proposed == first
    for one in (there, again):
        write_approved(tmp_path, one)
    reader = ApprovedProposals(tmp_path, network)
    assert reader.wanted(first) == [there.proposed]
    assert reader.wanted(there.proposed, 57) == [first]
    assert reader.wanted(first, 91) == []
    said = texts(faults_in_proposal(there, network, first, 91))
    assert "stands upon key block 0; the newest is 91: propose it anew" in said


def test_a_change_of_nothing_is_refused() -> None:
    network = founded()
    with pytest.raises(ConfigFaults, match="it is the one in force"):
        propose(network, network.chain.configuration, SetChange(from_ms=LATER_MS), seed_of("v1"))


def test_approvals_count_once_for_validators_in_force_and_for_their_proposal_alone() -> None:
    network = founded()
    base = network.chain.configuration
    proposal, other = added(network, "v5"), added(network, "v6")
    approvals = [approve(proposal, network, seed_of(name)) for name in ("v1", "v1", "v2")]
    assert all(faults_in_approval(one, proposal, network) == [] for one in approvals)
    assert approving(approvals, network, base) == ["v1", "v2"]
    assert "another proposal" in texts(faults_in_approval(approvals[0], other, network))
    relabelled = ChangeApproval(proposal=proposal.hash, member="v3", signature=approvals[0].signature)
    assert "is not that of v3" in texts(faults_in_approval(relabelled, proposal, network))


# Network file


def test_a_genesis_with_any_byte_changed_is_refused(tmp_path: Path) -> None:
    network = founded()
    path = tmp_path / "network.json"
    agreed = network.chain.hash.hex()
    network.write(path)
    assert load_network(path, agreed.upper()) == network
    genesis = bytes.fromhex(network.genesis)
    for place in range(len(genesis)):
        changed = genesis[:place] + bytes([genesis[place] ^ 1]) + genesis[place + 1 :]
        msgspec.structs.replace(network, genesis=changed.hex()).write(path)
        with pytest.raises(ConfigFaults):
            load_network(path, agreed)


def test_a_network_file_names_all_its_faults(tmp_path: Path) -> None:
    network = founded()
    path = tmp_path / "network.json"
    first, second, third, *others = network.members
    members = (
        first,
        msgspec.structs.replace(second, name=first.name, public_key=first.public_key),
        msgspec.structs.replace(third, host=first.host, port=first.port, public_key="AB" * 32),
        *others,
    )
    genesis = bytearray.fromhex(network.genesis)
    genesis[12] ^= 1
    msgspec.structs.replace(network, members=members, genesis=genesis.hex()).write(path)
    with pytest.raises(ConfigFaults) as refused:
        load_network(path, network.chain.hash.hex())
    assert [one.where for one in refused.value.faults[str(path)]] == [
        *("members[2].public_key", "name", "public_key", "address", "genesis")
    ]


def test_names_in_a_file_do_not_steer_the_terminal(tmp_path: Path) -> None:
    network = founded()
    path = tmp_path / "network.json"
    first, second, *others = network.members
    twice = [msgspec.structs.replace(one, name="v\x1b[31m") for one in (first, second)]
    msgspec.structs.replace(network, members=(*twice, *others)).write(path)
    with pytest.raises(ConfigFaults, match=r"v·\[31m is that of two members") as refused:
        load_network(path)
    assert "\x1b" not in str(refused.value)


def test_a_genesis_of_other_validators_is_refused(tmp_path: Path) -> None:
    network = founded()
    path = tmp_path / "network.json"
    msgspec.structs.replace(network, members=network.members[1:]).write(path)
    with pytest.raises(ConfigFaults) as refused:
        load_network(path)
    [fault] = refused.value.faults[str(path)]
    assert network.members[0].public_key in fault.text


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"name": "No Blanks"}, "name"),
        ({"host": ""}, "host"),
        ({"host": "::"}, "host"),
        ({"port": 0}, "port"),
        ({"port": 65_536}, "port"),
        ({"public_key": "ab"}, "public_key"),
    ],
)
def test_a_member_that_no_card_can_hold_is_refused_by_its_place(
    tmp_path: Path, change: dict[str, object], where: str
) -> None:
    network = founded()
    path = tmp_path / "network.json"
    *others, last = network.members
    changed = msgspec.structs.replace(last, **change)
    msgspec.structs.replace(network, members=(*others, changed)).write(path)
    with pytest.raises(ConfigFaults) as refused:
        load_network(path)
    assert [one.where for one in refused.value.faults[str(path)]] == [f"members[4].{where}"]
    assert refused.value.advice


@pytest.mark.parametrize("magic", [-1, 2**32])
def test_a_magic_number_that_no_link_can_say_is_refused(tmp_path: Path, magic: int) -> None:
    path = tmp_path / "network.json"
    msgspec.structs.replace(founded(), network_magic=magic).write(path)
    with pytest.raises(ConfigFaults, match=f"network_magic   {magic} is not 0 to {2**32 - 1}"):
        load_network(path)
    for edge in (0, 2**32 - 1):
        msgspec.structs.replace(founded(), network_magic=edge).write(path)
        assert load_network(path).network_magic == edge


@pytest.mark.parametrize("genesis", ["", "zz", "00", "0", "00" * 100, "AB" * 100])
def test_bytes_that_are_no_genesis_are_refused(tmp_path: Path, genesis: str) -> None:
    path = tmp_path / "network.json"
    msgspec.structs.replace(founded(), genesis=genesis).write(path)
    with pytest.raises(ConfigFaults, match="genesis"):
        load_network(path)


# Approved proposals in a data folder


def wanted_by(data: Path, network: RempNetwork, base: Configuration) -> list[bytes]:
    return [one.hash for one in ApprovedProposals(data, network).wanted(base)]


def test_a_validator_wants_what_was_approved_until_it_is_withdrawn_or_took_effect(tmp_path: Path) -> None:
    network = founded()
    base = network.chain.configuration
    proposal = added(network, "v5")
    reader = ApprovedProposals(tmp_path, joined(network, proposal.added))
    assert reader.wanted(base) == []
    write_approved(tmp_path, proposal)
    assert [one.hash for one in reader.wanted(base)] == [proposal.proposed.hash]
    assert reader.wanted(proposal.proposed) == []
    assert withdraw(tmp_path, proposal)
    assert not withdraw(tmp_path, proposal)
    assert reader.wanted(base) == []


def test_a_validator_does_not_vote_for_members_that_it_cannot_reach(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network = founded()
    proposal = added(network, "v5")
    write_approved(tmp_path, proposal)
    reader = ApprovedProposals(tmp_path, network)
    assert reader.wanted(network.chain.configuration) == []
    assert reader.wanted(network.chain.configuration) == []
    assert [one.message.count("network set members") for one in caplog.records] == [1]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"stagepost_proposal":1}', b"[" * 5_000, b"\xff"])
def test_files_that_are_not_proposals_are_left_out_and_named(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    network = founded()
    proposal = added(network, "v5")
    write_approved(tmp_path, proposal)
    (tmp_path / APPROVED_FOLDER / "a.json").write_bytes(content)
    assert wanted_by(tmp_path, joined(network, proposal.added), network.chain.configuration) == [
        proposal.proposed.hash
    ]
    assert "a.json" in caplog.text


def test_the_folder_of_approved_proposals_is_bounded(tmp_path: Path) -> None:
    network = founded()
    for number in range(APPROVED_MAX):
        write_approved(tmp_path, added(network, f"w{number}"))
    with pytest.raises(StorageError, match=str(APPROVED_MAX)):
        write_approved(tmp_path, added(network, "one-more"))
    write_approved(tmp_path, added(network, "w0"))
