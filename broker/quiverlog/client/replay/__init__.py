"""A past micro-batch of a Spark query, read again from the offsets of its checkpoint.

Nothing here knows Spark's classes: a checkpoint is a folder of text files.
"""
