"""The tree of hashes: its hash follows from its content, whatever the order of changes."""

from __future__ import annotations

from hashlib import sha256
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from stagepost.chain.hash_tree import EMPTY_HASH, HashTree, tree_of
from tests.worlds.chain.agreement_checker import tree_root

# Few bits differ, so that ways part early, late, and at the very last bit.
KEYS = st.one_of(
    st.binary(min_size=32, max_size=32),
    st.integers(0, 15).map(lambda number: bytes(31) + bytes([number])),
    st.integers(0, 15).map(lambda number: bytes([number << 4]) + bytes(31)),
)
CONTENTS = st.dictionaries(KEYS, st.binary(max_size=3), max_size=12)


def of_value(value: bytes) -> bytes:
    return sha256(value).digest()


def tree(content: dict[bytes, bytes]) -> HashTree[bytes]:
    return tree_of(of_value, content.items())


def expected(content: dict[bytes, bytes]) -> bytes:
    return tree_root({key: of_value(value) for key, value in content.items()})


@given(CONTENTS, st.randoms(use_true_random=False))
def test_the_hash_is_that_of_a_plain_recursion_over_the_content(
    content: dict[bytes, bytes], random: Random
) -> None:
    items = list(content.items())
    random.shuffle(items)

    assert tree(content).hash == tree_of(of_value, items).hash == expected(content)
    assert list(tree(content).items()) == sorted(content.items())


@given(CONTENTS, CONTENTS, st.lists(KEYS, max_size=6))
def test_changes_and_removals_leave_no_trace_but_the_content(
    first: dict[bytes, bytes], second: dict[bytes, bytes], gone: list[bytes]
) -> None:
    before = tree(first)
    hash_before = before.hash
    after = before
    for key, value in second.items():
        after = after.with_value(key, value)
    for key in [*gone, *list(first)[:3]]:
        after = after.without(key)
    content = {
        key: value for key, value in {**first, **second}.items() if key not in {*gone, *list(first)[:3]}
    }

    assert after.hash == expected(content)
    assert all(after.get(key) == content.get(key) for key in {*first, *second, *gone})
    assert before.hash == hash_before == expected(first)


@given(CONTENTS, st.integers(0, 6), st.integers(0, 63))
def test_parts_are_those_of_the_content_and_halves_make_a_whole(
    content: dict[bytes, bytes], bits: int, number: int
) -> None:
    prefix = number & ((1 << bits) - 1)
    inside = {
        key: value for key, value in content.items() if int.from_bytes(key, "big") >> (256 - bits) == prefix
    }
    part = tree(content).part(prefix, bits)

    assert part.hash == expected(inside)
    left, right = part.part(prefix << 1, bits + 1), part.part(prefix << 1 | 1, bits + 1)
    assert left.joined_with(right).hash == right.joined_with(left).hash == part.hash


def test_an_empty_tree_has_the_empty_hash_and_holds_nothing() -> None:
    nothing = tree({})

    assert nothing.is_empty
    assert nothing.hash == EMPTY_HASH
    assert nothing.get(bytes(32)) is None
    assert nothing.without(bytes(32)) is nothing
    assert not tree({bytes(32): b""}).is_empty
