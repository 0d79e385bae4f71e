"""This broker and the controller: registration, heartbeats, leader lease, elections, log ends."""
