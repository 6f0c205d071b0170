"""Carry what the notebook and a rank send each other."""
