"""Topics as tables: DuckDB, and the range reader of Spark.

Each query engine is imported when it is used. For polars see `client.polars_scan`.
"""
