"""What a broker writes about itself: log lines and metrics.

Owns both. Stands on no other package of the server.
"""
