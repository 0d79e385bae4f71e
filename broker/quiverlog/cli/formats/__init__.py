"""Rows and schemas as files and text: CSV, JSON, Parquet, Arrow, tables, templates.

Owns one notation per type, in both directions. Imports `cli.console` only.
"""
