"""Given code under the students' dp.py and pipe.py."""
