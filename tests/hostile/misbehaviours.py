"""Every misbehaviour of the kit, by name: what is done, in which state, and what the node must do within which time."""

from __future__ import annotations

from tests.hostile.playbook import Misbehaviour
from tests.hostile.rows_cbor import CBOR
from tests.hostile.rows_handshake import HANDSHAKES
from tests.hostile.rows_local import LOCAL
from tests.hostile.rows_messages import MESSAGES
from tests.hostile.rows_mux import MUX
from tests.hostile.rows_submission import SMALL_PROTOCOLS, SUBMISSION_ROWS

MISBEHAVIOURS: tuple[Misbehaviour, ...] = (
    *MUX,
    *HANDSHAKES,
    *CBOR,
    *SUBMISSION_ROWS,
    *SMALL_PROTOCOLS,
    *MESSAGES,
    *LOCAL,
)
BY_NAME = {row.name: row for row in MISBEHAVIOURS}
