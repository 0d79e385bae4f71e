"""Transactions: what a coordinator decides, and what a staging partition holds. Without I/O.

Owns the rows of `__transactions` and `__staged` and the states that follow from them. The other
cores are not used, only `batch` and floor 0.
"""
