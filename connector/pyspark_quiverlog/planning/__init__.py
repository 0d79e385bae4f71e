"""The driver's plan of a read: which rows a micro-batch or a batch has, and which task reads them.

`offsets` (what Spark logs) and `ranges` (pure functions over numbers) < `log_view` (requests to the
brokers) < `bounds` (by the options' starts and ends) and `admission` (by their limits) <
`stream_planner`. No module here imports pyspark, pyarrow, or the parts that read and write.
"""
