"""What a broker writes about itself: log lines and metrics.

Owns both. Uses no other package of the server.
"""
