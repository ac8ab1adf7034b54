"""The table `alerts`: conditions that somebody should look at. An alert's id depends only on its kind,
subject and day.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stagepost.pipeline.schemas import ALERTS
from stagepost.pipeline.steps.messages import Moment
from stagepost.remp.verdict.verdict import NO_PROOF, Conclusion

SILENT_SHARE = 0.5
SILENT_MESSAGES_MIN = 5
"""Messages, at least, from which on a validator that is silent on `SILENT_SHARE` of them is reported."""


def alerts(messages: DataFrame, validators: DataFrame, replays: DataFrame, moment: Moment) -> DataFrame:
    heard = F.col("validators") - F.size("silent")
    is_open = F.col("verdict").isin(Conclusion.SENT.value, Conclusion.QUEUED.value)
    expired = messages.where(F.col("verdict") == Conclusion.EXPIRED.value)
    unheard = messages.where(is_open & F.col("validators").isNotNull() & (3 * heard <= F.col("validators")))
    met = F.col("messages") + F.col("silent")
    quiet = validators.where((met >= SILENT_MESSAGES_MIN) & (F.col("silent") >= SILENT_SHARE * met))
    nobody = F.lit(None).cast("bigint")
    member = F.concat_ws(":", "session_id", F.format_string("V%d", F.col("validator") + 1))
    is_claimed = F.col("finalized_ms").isNotNull()
    unproved = messages.where(
        F.lit(moment.awaits_proofs)
        & is_claimed
        & (F.col("proof") == NO_PROOF)
        & (F.col("first_seen_ms") < moment.over_before_ms)
    )
    was_refused = 3 * F.size("rejected_by") >= 2 * F.col("validators")
    is_contradicted = (
        (F.size("ends") > 1)
        | (is_claimed & F.col("proof").isin("never", "executed_as"))
        | ((F.col("proof") == "executed") & F.coalesce(was_refused, F.lit(False)))
    )
    rejections = F.format_string("rejections of %d of %d validators", F.size("rejected_by"), "validators")
    claims = F.when(F.col("proof") == "executed", rejections).otherwise("a signed Finalized")
    against = F.when(F.size("ends") > 1, F.lit("each other")).otherwise(claims)
    found = [
        _alert(
            unproved,
            "unproved_finality",
            F.col("message_id"),
            F.try_add(F.col("first_seen_ms"), F.lit(moment.message_timeout_ms).cast("bigint")),
            F.format_string("Finalized at %d ms is signed, and no proof that holds is known", "finalized_ms"),
        ),
        _alert(
            messages.where(is_contradicted),
            "end_contradicted",
            F.col("message_id"),
            F.lit(None).cast("bigint"),
            F.format_string(
                "proved: %s, first by block %d; against it: %s",
                F.concat_ws(", ", "ends"),
                "proof_block",
                against,
            ),
        ),
        _alert(
            expired,
            "expired",
            F.col("message_id"),
            F.try_add(F.col("sent_ms"), F.lit(moment.message_timeout_ms).cast("bigint")),
            F.format_string("%d receipts, silent: %s", "receipts", F.to_json("silent")),
        ),
        _alert(
            unheard,
            "no_quorum",
            F.col("message_id"),
            F.col("sent_ms"),
            F.format_string("heard by %d of %d validators", heard, "validators"),
        ),
        _alert(
            quiet,
            "silent_validator",
            member,
            nobody,
            F.format_string("silent in %d of %d messages", "silent", met),
        ),
        _alert(
            validators.where(F.col("contradictions") > 0),
            "contradicting_validator",
            member,
            nobody,
            F.format_string("%d steps that no validator may take", "contradictions"),
        ),
        _alert(
            validators.where(F.col("bad_signatures") > 0),
            "bad_signatures",
            member,
            nobody,
            F.format_string("%d receipts in its name with a signature that does not hold", "bad_signatures"),
        ),
        _alert(
            replays.where(F.col("where") == "blocks"),
            "replay",
            F.col("message_id"),
            F.col("first_ms"),
            F.format_string("finalized in %d blocks", F.col("count") + 1),
        ),
    ]
    together = found[0]
    for more in found[1:]:
        together = together.unionByName(more)
    return together


def _alert(rows: DataFrame, kind: str, subject: Column, since_ms: Column, detail: Column) -> DataFrame:
    named = rows.select(
        F.lit(kind).alias("kind"),
        subject.alias("subject"),
        since_ms.alias("since_ms"),
        detail.alias("detail"),
        "day",
    )
    return named.withColumn("alert_id", F.sha2(F.concat_ws("|", "kind", "subject", "day"), 256)).select(
        *ALERTS.fieldNames(), "day"
    )
