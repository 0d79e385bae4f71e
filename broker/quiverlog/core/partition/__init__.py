"""One partition at one replica: leader epochs, in-sync set, high watermark, durability, producers.

Owns what is committed, which producer sequences are new, and when the in-sync set should change.
"""
