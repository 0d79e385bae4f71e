"""Arrow rows in and out: conversion, decoding, metadata columns, row filters."""
