"""One function per request type; no part of the broker imports from here."""
