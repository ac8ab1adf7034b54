"""The one list of cases: what is done, in which state, and what the node must do within which time."""

from __future__ import annotations

from stagepost.dmq.conform.playbook import Case
from stagepost.dmq.conform.rows_cbor import CBOR
from stagepost.dmq.conform.rows_handshake import HANDSHAKES
from stagepost.dmq.conform.rows_honest import HONEST
from stagepost.dmq.conform.rows_local import LOCAL
from stagepost.dmq.conform.rows_messages import MESSAGES
from stagepost.dmq.conform.rows_mux import MUX
from stagepost.dmq.conform.rows_puller import PULLING
from stagepost.dmq.conform.rows_small_protocols import SMALL_PROTOCOLS
from stagepost.dmq.conform.rows_supplier import SUPPLYING

CASES: tuple[Case, ...] = (
    *HONEST,
    *MUX,
    *HANDSHAKES,
    *CBOR,
    *PULLING,
    *SUPPLYING,
    *SMALL_PROTOCOLS,
    *MESSAGES,
    *LOCAL,
)
BY_NAME = {row.name: row for row in CASES}
