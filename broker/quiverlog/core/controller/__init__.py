"""The controller's rules: topics, schemas, configuration, registrations, elections.

Owns the metadata image and its records. A rule reads the image and returns records, or raises; only
`replay` in `image` changes it.
"""
