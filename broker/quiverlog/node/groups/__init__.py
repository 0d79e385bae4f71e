"""The coordinators of groups at this broker: `__groups` as a kind of internal topic, and what is
due by time.

Sees `transactions.hosted`, which hosts its partitions, and the parts below it.
"""
