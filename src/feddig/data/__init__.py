"""Data sets, and how their training samples are distributed to the silos."""

from feddig.data.dataset import Dataset, Images
from feddig.data.given import dataset_from, dataset_from_arrays
from feddig.data.load import load_dataset
from feddig.data.natural import partition_from
from feddig.data.partition import Partition, Share, draw_partition

__all__ = [
    "Dataset",
    "Images",
    "Partition",
    "Share",
    "dataset_from",
    "dataset_from_arrays",
    "draw_partition",
    "load_dataset",
    "partition_from",
]
