"""The tables of the observatory by epoch: beacons and pools, from signatures of Mithril and stake by day.

The same figures as `dmq.mithril.observatory`, for all of history. A figure that needs a stake or parameters which are not
known is null, never 0.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from stagepost.pipeline.schemas import TABLES
from stagepost.pipeline.steps.columns import small_table
from stagepost.pipeline.tables.delta import DataFile, held_ranges
from stagepost.pipeline.tables.tables import Tables

BEACON = ("epoch", "variant", "beacon")


def write_epochs(
    spark: SparkSession, tables: Tables, days: set[str], made: dict[str, list[str]], epochs: set[int]
) -> dict[str, list[DataFile]]:
    """Write the rows of some epochs: from files of the days as they are now, and of other days as they are stored."""
    wanted = F.broadcast(small_table(spark, [(epoch,) for epoch in sorted(epochs)], "epoch long"))

    def rows(name: str) -> DataFrame:
        paths = [
            held.path
            for held, least, greatest in held_ranges(tables.table(name).require(), "epoch")
            if held.day not in days
            and (least is None or greatest is None or any(least <= epoch <= greatest for epoch in epochs))
        ]
        found = tables.read_files(spark, name, [*made[name], *paths])
        return found.join(wanted, on="epoch", how="left_semi")

    frames = EpochFrames(rows("mithril_signatures"), rows("pool_stakes"))
    frames.heard.cache()
    try:
        steps = {"mithril_beacons": mithril_beacons, "mithril_pools": mithril_pools}
        return {name: tables.write(step(frames), name, 0) for name, step in steps.items()}
    finally:
        frames.heard.unpersist()


class EpochFrames:
    """Signatures and stake of some epochs, joined, from which both tables by epoch are made."""

    def __init__(self, signatures: DataFrame, stakes: DataFrame) -> None:
        once = [name for name in TABLES["mithril_signatures"].fieldNames() if name != "received_ms"]
        every = signatures.groupBy(*once).agg(
            F.min("received_ms").alias("received_ms"), F.max("day").alias("day")
        )
        self.distributions = _distributions(stakes)
        self.stakes = (
            stakes.join(
                F.broadcast(self.distributions.select("network_magic", "epoch", "digest")),
                on=["network_magic", "epoch", "digest"],
            )
            .groupBy("epoch", "pool_id")
            .agg(F.max("stake").alias("pool_stake"))
        )
        known = F.broadcast(self.distributions.drop("network_magic", "digest"))
        within = (F.col("received_ms") >= F.col("from_ms")) & (F.col("received_ms") < F.col("to_ms"))
        self.heard = (
            every.join(known, on="epoch", how="left")
            .join(self.stakes, on=["epoch", "pool_id"], how="left")
            .withColumn("is_within", F.coalesce(within, F.lit(True)))
        )
        days = signatures.select("epoch", "day").unionByName(stakes.select("epoch", "day"))
        self.days = F.broadcast(days.groupBy("epoch").agg(F.max("day").alias("day")))

    def speakers(self) -> DataFrame:
        """Return one row for each pool and beacon, of signatures that came in the epoch."""
        spoke = (
            self.heard.where("is_within")
            .groupBy(*BEACON, "pool_id")
            .agg(
                F.min("received_ms").alias("first_ms"),
                F.max("received_ms").alias("last_ms"),
                F.count("*").alias("messages"),
                F.count_distinct("body_hash").alias("bodies"),
                F.count_distinct("sigma").alias("sigmas"),
                *(
                    F.max(name).alias(name)
                    for name in ("timeout_ms", "pool_stake", "total_stake", "quorum_share")
                ),
            )
        )
        beacon = Window.partitionBy(*BEACON)
        order = beacon.orderBy(F.col("first_ms").asc_nulls_last(), "pool_id").rowsBetween(
            Window.unboundedPreceding, Window.currentRow
        )
        share = F.sum(F.coalesce("pool_stake", F.lit(0))).over(order) / _positive("total_stake")
        return spoke.withColumn("delay_ms", F.col("first_ms") - F.min("first_ms").over(beacon)).withColumn(
            "share", share
        )


def _distributions(stakes: DataFrame) -> DataFrame:
    """Return one row for each epoch with a whole distribution of a single network: the one that was asked last."""
    named = ["network_magic", "epoch", "digest"]
    once = stakes.groupBy(*named, "part", "pool_id").agg(
        F.max("stake").cast("decimal(38,0)").alias("stake"),
        *(F.max(name).alias(name) for name in (*_OF_DISTRIBUTION, "taken_ms", "parts", "pools")),
    )
    whole = (
        once.groupBy(*named)
        .agg(
            F.sum("stake").alias("sum"),
            F.count("*").alias("rows"),
            F.count_distinct("pool_id").alias("distinct"),
            F.count_distinct("part").alias("held"),
            *(F.max(name).alias(name) for name in (*_OF_DISTRIBUTION, "taken_ms", "parts", "pools")),
        )
        .where("held = parts AND rows = pools AND distinct = pools AND sum = total_stake")
    )
    epoch = Window.partitionBy("epoch")
    newest = epoch.orderBy(F.col("taken_ms").desc(), F.col("digest").desc())
    return (
        whole.withColumn("networks", F.size(F.collect_set("network_magic").over(epoch)))
        .withColumn("place", F.row_number().over(newest))
        .where("networks = 1 AND place = 1")
        .select(*named, *_OF_DISTRIBUTION)
    )


_OF_DISTRIBUTION = (
    "from_ms",
    "to_ms",
    "kes_evolutions_max",
    "total_stake",
    "quorum",
    "indexes_drawn",
    "phi_f",
    "quorum_share",
)


def mithril_beacons(frames: EpochFrames) -> DataFrame:
    """Return one row for each beacon of the epochs."""
    named = frames.heard.groupBy(*BEACON).agg(
        *(F.max(name).alias(name) for name in ("entity", "entity_before", *_OF_DISTRIBUTION)),
        F.count_if(~F.col("is_within")).alias("outside"),
    )
    spoken = (
        frames.speakers()
        .groupBy(*BEACON)
        .agg(
            F.min("first_ms").alias("first_ms"),
            F.max("last_ms").alias("last_ms"),
            F.count("*").alias("pools"),
            F.sum(F.coalesce("pool_stake", F.lit(0))).alias("known"),
            F.count_if(F.col("pool_stake") == 0).alias("unstaked"),
            F.count_if(F.col("pool_stake").isNull()).alias("strangers"),
            _reached(F.lit(0.5)).alias("half_ms"),
            _reached(F.col("quorum_share")).alias("quorum_ms"),
            F.count_if(F.col("delay_ms") > F.col("timeout_ms")).alias("late"),
            F.sum(F.col("messages") - F.col("bodies")).alias("repeats"),
            F.count_if(F.col("bodies") > F.col("sigmas")).alias("reencoded"),
            F.count_if(F.col("sigmas") > 1).alias("equivocating"),
        )
    )
    claimed = (
        frames.heard.where("is_within AND pool_stake > 0 AND indexes_drawn IS NOT NULL")
        .select(*BEACON, "indexes_drawn", F.explode("indexes").alias("index"))
        .where("index < indexes_drawn")
        .groupBy(*BEACON)
        .agg(F.count_distinct("index").alias("indexes"))
    )
    joined = named.join(spoken, on=list(BEACON), how="left").join(claimed, on=list(BEACON), how="left")
    has_stake = F.col("total_stake").isNotNull()
    stake = F.when(has_stake, F.coalesce("known", F.lit(0)))
    share = stake / _positive("total_stake")
    indexes = F.when(F.col("quorum").isNotNull(), F.coalesce("indexes", F.lit(0)))
    expected = F.col("indexes_drawn") * (1.0 - F.pow(1.0 - F.col("phi_f"), share))
    counted = ("pools", "late", "repeats", "reencoded", "equivocating")
    values = {
        **{name: F.coalesce(name, F.lit(0)) for name in counted},
        "stake": stake,
        "adoption_percent": 100.0 * share,
        "unstaked_pools": F.when(has_stake, F.coalesce("unstaked", F.lit(0))),
        "unknown_pools": F.when(has_stake, F.coalesce("strangers", F.lit(0))),
        "indexes": indexes,
        "quorum_percent": 100.0 * indexes / F.col("quorum"),
        "expected_percent": 100.0 * expected / F.col("quorum"),
        "other_epoch": F.when(has_stake, F.col("outside")),
    }
    return _shaped(joined, values, TABLES["mithril_beacons"], frames.days)


def mithril_pools(frames: EpochFrames) -> DataFrame:
    """Return one row for each epoch and pool that spoke in it or has stake in it."""
    key = ["epoch", "pool_id"]
    speakers = frames.speakers()
    seen = speakers.groupBy("epoch").agg(F.count_distinct("variant", "beacon").alias("seen"))
    spoke = speakers.groupBy(*key).agg(
        F.count("*").alias("signed"),
        _percentile(0.5).alias("median_late_ms"),
        _percentile(0.95).alias("p95_late_ms"),
        F.count_if(F.col("delay_ms") > F.col("timeout_ms")).alias("late"),
        F.sum(F.col("messages") - F.col("bodies")).alias("repeats"),
        F.count_if(F.col("bodies") > F.col("sigmas")).alias("reencoded"),
        F.count_if(F.col("sigmas") > 1).alias("equivocations"),
    )
    evolved = F.col("start_kes_period") - F.col("kes_period")
    heard = frames.heard.groupBy(*key).agg(
        F.count_if(~F.col("is_within")).alias("outside"),
        F.max("certificate_number").alias("certificate_number"),
        F.count_distinct("certificate_number").alias("certificates"),
        F.max_by(evolved, F.struct("received_ms", "dmq_id")).alias("evolved"),
        F.array_join(F.array_sort(F.collect_set("form")), ",").alias("forms"),
    )
    staked = frames.stakes.where("pool_stake > 0").select(*key)
    whose = heard.select(*key).unionByName(staked).distinct()
    known = F.broadcast(frames.distributions.select("epoch", "total_stake", "kes_evolutions_max"))
    joined = (
        whose.join(heard, on=key, how="left")
        .join(spoke, on=key, how="left")
        .join(frames.stakes, on=key, how="left")
        .join(F.broadcast(seen), on="epoch", how="left")
        .join(known, on="epoch", how="left")
    )
    signed = F.coalesce("signed", F.lit(0))
    counted = ("late", "repeats", "reencoded", "equivocations", "certificates")
    values = {
        **{name: F.coalesce(name, F.lit(0)) for name in counted},
        "stake": F.col("pool_stake"),
        "share_percent": 100.0 * (F.col("pool_stake") / _positive("total_stake")),
        "signed": signed,
        "silent": F.coalesce("seen", F.lit(0)) - signed,
        "other_epoch": F.when(F.col("total_stake").isNotNull(), F.coalesce("outside", F.lit(0))),
        "kes_periods_left": F.col("evolved") + F.col("kes_evolutions_max") - 1,
    }
    return _shaped(joined, values, TABLES["mithril_pools"], frames.days)


def _shaped(joined: DataFrame, values: dict[str, Column], schema: StructType, days: DataFrame) -> DataFrame:
    columns = [
        values.get(field.name, F.col(field.name)).cast(field.dataType).alias(field.name)
        for field in schema.fields
    ]
    return joined.select(*columns).join(days, on="epoch", how="left").select(*schema.fieldNames(), "day")


def _positive(name: str) -> Column:
    """Return a divisor; null in place of 0, whose shares nobody knows."""
    return F.when(F.col(name) > 0, F.col(name))


def _reached(share: Column) -> Column:
    return F.min(F.when(F.col("share") >= share, F.col("delay_ms")))


def _percentile(share: float) -> Column:
    return F.expr(f"percentile_disc({share}) WITHIN GROUP (ORDER BY delay_ms)").cast("bigint")
