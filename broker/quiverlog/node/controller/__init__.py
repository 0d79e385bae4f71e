"""This broker and the controller: registration, heartbeats, leader lease, elections, log ends.

Owns what the active controller decides, and what each broker reports to it. Stands on
`node.metadata` and `node.replication`.
"""
