"""Code for CUDA devices: fused layers and their Triton kernels."""
