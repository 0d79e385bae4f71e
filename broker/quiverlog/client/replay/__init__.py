"""A past micro-batch of a Spark query, read again from the offsets of its checkpoint.

Without Spark's classes: a checkpoint is a folder of text files.
"""
