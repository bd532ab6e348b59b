"""Compiled loops over Arrow text buffers. Home of numba."""
