"""Explore buckets: which gradients are sent together, when, and how much of it backward hides.

gradients     sizes of a model's gradients, and when backward makes them: gradients.json
bucket_plan   gradients in buckets, by the reader's own rule
reducer       a backward pass with buckets, step by step
panels        the same as panels
widget        all of it in a notebook: bucket_explorer
"""
