"""Instructions on random and special operands, as a GPU does them, and as the emulated device must."""
