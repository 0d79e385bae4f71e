"""A client that any reader of the documentation could have written."""
