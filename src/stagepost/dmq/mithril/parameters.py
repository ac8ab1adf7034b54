"""Parameters of Mithril's lottery: how many indexes are drawn, and how many distinct ones make a certificate.

A signer with the stake share s wins m · (1 − (1 − phi_f)^s) of m indexes on average. Signers with the common share S win
as many distinct ones as a single signer with that share, so a quorum of k indexes asks for a share of stake.
"""

from __future__ import annotations

import math

import msgspec

from stagepost.errors import ConfigError

INDEXES_DRAWN_MAX = 2**31 - 1
"""Indexes of a lottery, the most that is taken."""
MAINNET_MAGIC = 764_824_073


class LotteryParameters(msgspec.Struct, frozen=True):
    """`k` distinct indexes of `m` make a quorum; `phi_f` is the chance of the whole stake to win one."""

    k: int
    m: int
    phi_f: float

    def __post_init__(self) -> None:
        if not (1 <= self.k <= self.m <= INDEXES_DRAWN_MAX and 0.0 < self.phi_f < 1.0):
            raise ConfigError(
                f"k {self.k}, m {self.m}, phi_f {self.phi_f} are not parameters of a lottery",
                advice="give 1 ≤ k ≤ m and 0 < phi_f < 1, for example 1944,16948,0.2",
            )

    def expected_indexes(self, share: float) -> float:
        """Return the distinct indexes that signers with this share of all stake win together, on average."""
        return float(self.m * (1.0 - math.pow(1.0 - self.phi_f, share)))

    @property
    def quorum_share(self) -> float:
        """Return the share of stake whose expected indexes are `k`; above 1 if no stake suffices."""
        if self.k >= self.m:
            return math.inf
        return math.log(1.0 - self.k / self.m) / math.log(1.0 - self.phi_f)


_MAINNET_SINCE_619 = LotteryParameters(1_944, 16_948, 0.2)
_MAINNET_BEFORE = LotteryParameters(2_422, 20_973, 0.2)


def known_parameters(network_magic: int, epoch: int) -> LotteryParameters | None:
    """Return the parameters of an epoch of a public network; None where they are not known here."""
    if network_magic != MAINNET_MAGIC:
        return None
    return _MAINNET_SINCE_619 if epoch >= 619 else _MAINNET_BEFORE


def parse_parameters(text: str) -> LotteryParameters:
    """Return the parameters written as `k,m,phi_f`; `ConfigError` for any other text."""
    try:
        k, m, phi_f = text.split(",")
        return LotteryParameters(int(k), int(m), float(phi_f))
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is not of the form k,m,phi_f", advice="for example 1944,16948,0.2"
        ) from error
