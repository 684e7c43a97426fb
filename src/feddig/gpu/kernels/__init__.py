"""Triton kernels of our own, for NVIDIA GPUs. Only fused.py imports them, and only where Triton is installed."""
