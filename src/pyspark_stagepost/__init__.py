"""The name under which Spark finds `format("stagepost")` by itself: it looks for `DefaultSource` in packages that begin so."""

from stagepost.pipeline.sources.topic_source import TopicSource as DefaultSource

__all__ = ["DefaultSource"]
