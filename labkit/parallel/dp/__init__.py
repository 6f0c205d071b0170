"""Given code under labkit/dp.py."""
