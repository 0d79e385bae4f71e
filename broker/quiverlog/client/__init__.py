"""Clients of a quiverlog cluster.

Logic lives in operations (generators that yield commands) and machines without I/O; two thin
drivers perform them, one with plain sockets and one on asyncio. Nothing is imported here, so that
only callers that touch rows load pyarrow.
"""
