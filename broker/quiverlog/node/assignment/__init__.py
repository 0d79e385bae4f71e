"""Which partitions are on this broker, and how a request finds one; the rounds of retention."""
