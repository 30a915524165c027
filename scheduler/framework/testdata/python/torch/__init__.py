"""Stands in for PyTorch: two devices of 81920 MiB."""
from . import cuda
