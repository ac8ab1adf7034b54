"""Member card: the public part of one member of a network, signed with the member's own key.

{"stagepost_member": 1, "name": "validator-1", "public_key": "<64 hex>", "host": "10.0.0.1", "port": 4001,
 "is_validator": true, "signature": "<128 hex>"}
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import msgspec

from stagepost.errors import ConfigFaults, FileFault
from stagepost.full_node.network import NetworkMember, faults_in_member
from stagepost.ground.crypto import ed25519
from stagepost.ground.files.small_files import read_small_file
from stagepost.ground.wire.foreign_json import decode_foreign

CARD_VERSION = 1
CARD_BYTES_MAX = 4_096
HEX_SIGNATURE = re.compile(r"[0-9a-f]{128}")

_DOMAIN = b"stagepost member card\x00"

T = TypeVar("T")


class MemberCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    stagepost_member: int = CARD_VERSION
    name: str
    public_key: str
    host: str
    port: int
    is_validator: bool
    signature: str = ""

    @property
    def key(self) -> bytes:
        return bytes.fromhex(self.public_key)

    @property
    def member(self) -> NetworkMember:
        return NetworkMember(self.name, self.public_key, self.host, self.port, self.is_validator)

    @property
    def signed_bytes(self) -> bytes:
        return signed_form(_DOMAIN, msgspec.structs.replace(self, signature=""))


def make_card(seed: bytes, name: str, host: str, port: int, *, is_validator: bool) -> MemberCard:
    """Return the card of the member with this secret; `ConfigFaults` for a name or an address that no card can hold."""
    card = MemberCard(
        name=name,
        public_key=ed25519.public_key(seed).hex(),
        host=host,
        port=port,
        is_validator=is_validator,
    )
    faults = faults_in_member(card.member)
    if faults:
        raise ConfigFaults({"the member card": faults})
    return msgspec.structs.replace(card, signature=ed25519.sign(seed, card.signed_bytes).hex())


def faults_in_card(card: MemberCard) -> list[FileFault]:
    """Return everything that is wrong in a card. Its signature is checked last, and only where the rest is right."""
    faults = []
    if card.stagepost_member != CARD_VERSION:
        faults.append(
            FileFault(
                "stagepost_member", f"is {card.stagepost_member}; this release reads version {CARD_VERSION}"
            )
        )
    faults += faults_in_member(card.member)
    if HEX_SIGNATURE.fullmatch(card.signature) is None:
        faults.append(FileFault("signature", "is not 128 lower-case hexadecimal digits"))
    if not faults and not ed25519.verify(card.key, card.signed_bytes, bytes.fromhex(card.signature)):
        faults.append(
            FileFault(
                "signature", "is not that of public_key: the card was changed, or made by somebody else"
            )
        )
    return faults


def load_card(path: Path) -> MemberCard:
    """Read the card at `path`; `ConfigFaults` names everything that is wrong in it."""
    card = load_json(path, CARD_BYTES_MAX, "a member card", MemberCard)
    faults = faults_in_card(card)
    if faults:
        raise ConfigFaults({str(path): faults})
    return card


def load_json(path: Path, bytes_max: int, what: str, kind: type[T]) -> T:
    """Read a small JSON file of one kind; `ConfigFaults` if it is not one."""
    content, _ = read_small_file(path, bytes_max, what)
    try:
        return decode_foreign(content, kind)
    except msgspec.MsgspecError as error:
        raise ConfigFaults({str(path): [FileFault("the file", f"is not {what}: {error}")]}) from error


def signed_form(domain: bytes, content: msgspec.Struct) -> bytes:
    """Return the bytes that a signature covers: the purpose of the file, then its JSON in the order of its fields."""
    return domain + msgspec.json.encode(content)
