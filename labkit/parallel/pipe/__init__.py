"""Given code under labkit/pipe.py."""
