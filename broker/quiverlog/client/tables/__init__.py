"""Topics as tables: DuckDB, and the range reader of Spark.

Owns the bridges to query engines, each of which is imported when it is used. Stands on
`client.consumer`. (polars opens clients of its own: `client.polars_scan`.)
"""
