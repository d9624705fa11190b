"""Executes the PTX that nvcc makes of a kernel, on a machine without a GPU, and checks what a GPU hides."""
