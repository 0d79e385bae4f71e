"""Administration, as operations: topics, brokers, quorum, moves of partitions."""
