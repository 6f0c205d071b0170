"""Serve every room, and import nothing of labkit.

checks       check an argument: numbers, counts, seconds, bytes
files        write a file whole or not at all
formats      how a number prints, so that a test knows what may differ
hub          does the Hugging Face hub answer
machine      how many cores and how much memory this process may use
rendezvous   how processes find each other
tensors      a tensor as its bytes
"""
