"""Given code under the students' dp.py, shard.py and pipe.py."""
