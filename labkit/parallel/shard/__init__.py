"""Given code under labkit/shard.py."""
