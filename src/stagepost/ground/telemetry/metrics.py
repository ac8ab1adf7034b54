"""Declarations of metrics: name, kind, labels and meaning. Each room declares its own; `docs/metrics.md`
lists them all.

Labels take their values from enums, never from peers: data from peers must not add time series.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric as MetricFamily

from stagepost import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


OTHER = "other"
"""Label value for a reason that is not declared; there should be none."""


@dataclass(frozen=True, slots=True)
class MetricDeclaration:
    """Declaration of one metric. `labels` maps each label to all values that it can take; empty where there
    is only one."""

    name: str
    kind: Kind
    about: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def counter(self, registry: CollectorRegistry) -> Counter:
        """Return the metric itself, in `registry`; `ValueError` if it was declared as another kind."""
        self._require(Kind.COUNTER)
        return Counter(self.name, self.about, list(self.labels), registry=registry)

    def gauge(self, registry: CollectorRegistry) -> Gauge:
        self._require(Kind.GAUGE)
        return Gauge(self.name, self.about, list(self.labels), registry=registry)

    def histogram(self, registry: CollectorRegistry, buckets: Sequence[float]) -> Histogram:
        self._require(Kind.HISTOGRAM)
        return Histogram(self.name, self.about, list(self.labels), registry=registry, buckets=buckets)

    def _require(self, kind: Kind) -> None:
        if self.kind is not kind:
            raise ValueError(f"{self.name} is declared as a {self.kind}, not as a {kind}")


BUILD_INFO = MetricDeclaration(
    "stagepost_build_info",
    Kind.GAUGE,
    "Always 1; the labels name the version of Stagepost and of Python.",
    {"version": (), "python": ()},
)


def set_build_info(registry: CollectorRegistry) -> None:
    BUILD_INFO.gauge(registry).labels(__version__, platform.python_version()).set(1)


class DeclaredSamples:
    """Registry without the `_created` time stamps that the library adds to every counter, since nobody
    declared them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[MetricFamily]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
