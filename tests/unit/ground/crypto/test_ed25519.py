"""Ed25519 answers as libsodium does, on odd inputs too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stagepost.ground.crypto import ed25519

VECTORS = Path(__file__).parents[3] / "vectors" / "dmq"
EDGES: list[dict[str, Any]] = json.loads((VECTORS / "ed25519-edge.json").read_text())["vectors"]

SEED = bytes(range(32))


@pytest.mark.parametrize("vector", EDGES, ids=lambda vector: str(vector["id"]))
def test_edge_vector_is_answered_as_stated(vector: dict[str, Any]) -> None:
    answer = ed25519.verify(
        bytes.fromhex(vector["public_key_hex"]),
        bytes.fromhex(vector["message_hex"]),
        bytes.fromhex(vector["signature_hex"]),
    )

    assert answer is vector["accept"]


def test_own_signature_verifies_and_an_altered_one_does_not() -> None:
    public_key = ed25519.public_key(SEED)
    signature = ed25519.sign(SEED, b"message")

    assert ed25519.verify(public_key, b"message", signature)
    assert not ed25519.verify(public_key, b"messagf", signature)
    assert not ed25519.verify(public_key, b"message", bytes([signature[0] ^ 1]) + signature[1:])


def test_empty_message_can_be_signed() -> None:
    assert ed25519.verify(ed25519.public_key(SEED), b"", ed25519.sign(SEED, b""))


def test_signing_with_the_public_key_at_hand_gives_the_same_signature() -> None:
    public_key = ed25519.public_key(SEED)

    assert ed25519.sign(SEED, b"m", public_key=public_key) == ed25519.sign(SEED, b"m")


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_public_key_of_wrong_length_is_false(length: int) -> None:
    assert not ed25519.verify(bytes(length), b"m", ed25519.sign(SEED, b"m"))


@pytest.mark.parametrize("length", [0, 1, 63, 65, 128])
def test_signature_of_wrong_length_is_false(length: int) -> None:
    signature = (ed25519.sign(SEED, b"m") * 2)[:length]

    assert not ed25519.verify(ed25519.public_key(SEED), b"m", signature)


def test_signature_cannot_borrow_bytes_from_the_message() -> None:
    # Concatenation inside must not let (short signature, longer message) pass for the real pair.
    signature = ed25519.sign(SEED, b"m")

    assert not ed25519.verify(ed25519.public_key(SEED), signature[63:] + b"m", signature[:63])


@pytest.mark.parametrize("length", [0, 31, 33])
def test_seed_of_wrong_length_is_an_error_that_says_so(length: int) -> None:
    with pytest.raises(ValueError, match=f"has 32 bytes, found {length}"):
        ed25519.public_key(bytes(length))
    with pytest.raises(ValueError, match=f"has 32 bytes, found {length}"):
        ed25519.sign(bytes(length), b"m")


@pytest.mark.parametrize("vector", EDGES, ids=lambda vector: str(vector["id"]))
def test_the_binding_and_the_library_called_directly_accept_the_same(vector: dict[str, Any]) -> None:
    """Which of the two is used depends on how the binding was built; nobody may notice."""
    key, content, signature = (
        bytes.fromhex(vector[name]) for name in ("public_key_hex", "message_hex", "signature_hex")
    )
    if len(key) == ed25519.PUBLIC_KEY_BYTES and len(signature) == ed25519.SIGNATURE_BYTES:
        answers = [open_it(signature + content, key) for open_it in (ed25519._open, ed25519.open_by_binding)]
        assert answers == [vector["accept"]] * 2
