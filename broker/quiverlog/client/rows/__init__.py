"""Arrow rows in and out: conversion, decoding, metadata columns, row filters.

Owns how rows become batches and batches rows. Stands on `client.base`.
"""
