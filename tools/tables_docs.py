"""Writes docs/tables.md from the data dictionary: `python tools/tables_docs.py FILE`. A test compares the result."""

from __future__ import annotations

import sys
from pathlib import Path

from stagepost.ground.statemachine.render import table
from stagepost.pipeline.dictionary import DAY_ENTRY, TABLES, TableEntry

GENERATED = "<!-- Written by `make docs` from the code; changes made here are lost. -->"
ABOUT = (
    "These tables are Delta tables, one folder each below the address that `--tables` names, divided by the day of arrival. "
    "Any reader of the format takes them as they are: Spark, DuckDB, polars, pandas, Trino. The same texts stand as comments in the "
    "tables' own schemas. Times are Unix milliseconds where nothing else is said, and ids are hexadecimal text in small letters. "
    "How the tables are made and kept is on the [pipeline's page](pipeline.md)."
)
ASKING = """## Asking

Without Spark, and only reading:

```
stagepost pipeline sql "SELECT verdict, count(*) AS messages FROM messages GROUP BY verdict" --tables tables [--json|--csv]
```

The command takes one SELECT, opens no other files, and shows all tables at the versions that belong together. A condition on `day` reads those days alone. `--tables` is
a folder, or an address such as `s3://lake/tables`; access to object storage is named by the usual variables (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
`AWS_REGION`, and `AWS_ALLOW_HTTP=true` for a server without TLS).

In pandas: `DeltaTable("tables/messages").to_pandas()`, of the package `deltalake`. The notebook `examples/tables.ipynb` and the ten questions of `examples/table_queries.py`, each in Spark SQL, DuckDB and
pandas, are run by the tests.

In Spark, with Delta:

```python
from stagepost.pipeline.catalog import SETTINGS, register_tables
from stagepost.pipeline.spark import start_session
from stagepost.pipeline.tables.store import TableStore

spark = start_session(settings={**SETTINGS, "spark.jars": "…"})  # printed by `stagepost pipeline jars`
register_tables(spark, TableStore.at("tables"))
spark.sql("SELECT verdict, count(*) FROM stagepost.messages GROUP BY verdict").show()
```

`stagepost pipeline catalog --tables tables` prints the same registration as SQL. Where the package is installed, `spark.read.format("stagepost")` is found without a call of `register`."""


def page() -> str:
    names = table(("table", "a row"), ((f"[`{one.name}`](#{one.name})", one.about) for one in TABLES))
    return "\n\n".join([GENERATED, "# Tables", ABOUT, names, ASKING, *map(_chapter, TABLES)]) + "\n"


def _chapter(entry: TableEntry) -> str:
    rows = ((f"`{one.name}`", f"`{one.type}`", one.about) for one in (*entry.columns, DAY_ENTRY))
    return f"## {entry.name}\n\n{entry.about}\n\n" + table(("column", "type", "meaning"), rows)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
