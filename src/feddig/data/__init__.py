"""Data sets, and how their training samples are distributed to the silos."""

from feddig.data.dataset import Dataset, Images
from feddig.data.load import dataset_from_arrays, load_dataset
from feddig.data.partition import Partition, Share, draw_partition

__all__ = [
    "Dataset",
    "Images",
    "Partition",
    "Share",
    "dataset_from_arrays",
    "draw_partition",
    "load_dataset",
]
