"""This broker and the controller: registration, heartbeats, leader lease, elections, log ends.

Owns the active controller's decisions about brokers and leaders, and each broker's reports to it.
Uses `node.metadata` and `node.replication`.
"""
