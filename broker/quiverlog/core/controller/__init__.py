"""The controller's rules: topics, schemas, configuration, registrations, elections.

Owns the metadata image and its records. A rule reads the image and returns records, or raises;
records change the image by `replay` alone. Sessions and reported log ends are in memory, at the
active controller.
"""
