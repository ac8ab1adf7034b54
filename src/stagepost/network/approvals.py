"""Folder of approved proposals in a validator's data folder: written by its operator, read by the running validator."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from stagepost.chain.configuration import Configuration
from stagepost.errors import ConfigFaults, StorageError
from stagepost.full_node.network import RempNetwork
from stagepost.ground.files.data_folder import make_private, require_private
from stagepost.ground.files.small_files import FILE_MODE, replace_file
from stagepost.network.cards import load_json
from stagepost.network.changes import PROPOSAL_BYTES_MAX, ChangeProposal, faults_in_proposal, faults_in_reach

log = logging.getLogger(__name__)

APPROVED_FOLDER = "approved"
APPROVED_MAX = 64
"""Proposals, at most, in the folder; a further one is refused until others are withdrawn."""


def require_validators_user(data: Path) -> None:
    """Refuse a data folder of another user: what this user writes there, such as root, the validator cannot read."""
    require_private(data, "data folder", advice="run this command as the user that runs the validator")


def write_approved(data: Path, proposal: ChangeProposal) -> Path:
    """Put a proposal into the folder, where the validator finds it within a second."""
    folder = data / APPROVED_FOLDER
    require_validators_user(data)
    make_private(folder, "folder of approved proposals", advice="check the data folder of the validator")
    path = folder / f"{proposal.hash}.json"
    if not path.exists() and len(list(folder.glob("*.json"))) >= APPROVED_MAX:
        raise StorageError(
            f"{folder} holds {APPROVED_MAX} proposals, which is the most",
            advice="withdraw some that are over with `stagepost network set withdraw`",
        )
    replace_file(path, msgspec.json.format(msgspec.json.encode(proposal), indent=1) + b"\n", FILE_MODE)
    return path


def withdraw(data: Path, proposal: ChangeProposal) -> bool:
    """Take a proposal out of the folder; return whether it was there."""
    path = data / APPROVED_FOLDER / f"{proposal.hash}.json"
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


class ApprovedProposals:
    """Reader of the folder for a running validator. A file is read again only when it has changed."""

    def __init__(self, data: Path, network: RempNetwork) -> None:
        self._folder = data / APPROVED_FOLDER
        self.network = network
        self._read: dict[tuple[str, int], ChangeProposal | None] = {}
        self._told: set[tuple[str, str]] = set()
        self._looked: tuple[Configuration, int, RempNetwork, list[ChangeProposal]] | None = None
        self._wanted: list[Configuration] = []

    def wanted(self, base: Configuration, key_block: int = 0) -> list[Configuration]:
        """Return the configurations that the operator approved and that can follow `base`, which `key_block` brought, in order
        of their hashes.
        """
        proposals = self._proposals()
        if self._looked == (base, key_block, self.network, proposals):
            return self._wanted  # nothing has changed: signatures are checked once
        found = []
        for proposal in proposals:
            if (proposal.base, proposal.key_block) != (base.hash.hex(), key_block):
                continue  # it took effect, or another one did
            faults = faults_in_proposal(proposal, self.network, base, key_block) or faults_in_reach(
                proposal, self.network
            )
            if faults:
                self._tell_once(
                    proposal.hash, f"the approved proposal {proposal.hash} cannot be used: {faults[0].text}"
                )
                continue
            found.append(proposal.proposed)
        self._looked = base, key_block, self.network, proposals
        self._wanted = sorted(found, key=lambda one: one.hash)
        return self._wanted

    def _proposals(self) -> list[ChangeProposal]:
        read: dict[tuple[str, int], ChangeProposal | None] = {}
        try:
            entries = sorted(os.scandir(self._folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            entries = []
        except OSError as error:
            self._tell_once("folder", f"approved proposals in {self._folder} cannot be read: {error}")
            return [one for one in self._read.values() if one is not None]
        for entry in entries[: 2 * APPROVED_MAX]:
            if not entry.name.endswith(".json"):
                continue
            try:
                name = entry.path, entry.stat().st_mtime_ns
            except OSError:
                continue  # it was withdrawn in this moment
            read[name] = self._read[name] if name in self._read else self._load(Path(entry.path))
        self._read = read
        return [one for one in read.values() if one is not None]

    def _load(self, path: Path) -> ChangeProposal | None:
        try:
            return load_json(path, PROPOSAL_BYTES_MAX, "a proposal", ChangeProposal)
        except ConfigFaults as error:
            self._tell_once(str(path), f"an approved proposal is left out: {error.text}")
            return None

    def _tell_once(self, about: str, text: str) -> None:
        if (about, text) not in self._told:
            self._told.add((about, text))
            log.warning("%s", text)
