"""Data digests: how they are made, written, read and denoised."""
