"""Executes the PTX that nvcc generates for a kernel, without a GPU, and checks what a GPU hides."""
