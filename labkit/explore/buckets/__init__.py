"""Explore buckets: which gradients are sent together, when, and how much of it backward hides.

gradients     sizes of a model's gradients, and when backward makes them: gradients.json
reducer       buckets by the reader's own rule, and a backward pass with them, step by step
panels        the same as panels
widget        all of it in a notebook: bucket_explorer
"""
