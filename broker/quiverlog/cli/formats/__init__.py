"""Rows and schemas as files and text: CSV, JSON, Parquet, Arrow, tables, templates.

Owns how values are written as text and read from it. Of `cli` it imports `cli.console` only.
"""
