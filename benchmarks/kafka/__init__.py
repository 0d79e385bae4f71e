"""quiverlog beside Apache Kafka and Spark's Kafka source, in turns on one machine."""
