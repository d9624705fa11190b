"""What runs in C where a compiler is: the same results as the NumPy functions, to the bit."""
