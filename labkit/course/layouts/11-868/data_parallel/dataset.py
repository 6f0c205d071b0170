"""Problem 1.1, from labkit/dp.py."""

from labkit.dp import DataPartitioner, Partition, partition_dataset

__all__ = ["DataPartitioner", "Partition", "partition_dataset"]
