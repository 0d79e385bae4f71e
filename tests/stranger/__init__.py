"""A client that somebody else could have written."""
