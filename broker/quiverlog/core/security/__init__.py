"""Users, rules and what decides by them: pure, records are in `core/controller`.

Owns the principals that connections act for, and what each of them may do.
"""
