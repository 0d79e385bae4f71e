"""Logins by SCRAM, and messages about users, tokens and rules.

Owns what a client and a broker send each other about principals. Uses the frames' base classes, and
no other message.
"""
