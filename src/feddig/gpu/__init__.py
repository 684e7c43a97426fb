"""Code for NVIDIA GPUs: fused layers and their Triton kernels."""
