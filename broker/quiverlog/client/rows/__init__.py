"""Arrow rows in and out: conversion, decoding, metadata columns, row filters.

Owns the conversion of rows to batches and back. Uses `client.base`.
"""
