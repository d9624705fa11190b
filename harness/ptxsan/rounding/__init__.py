"""Arithmetic to the bit: rounding, conversions, fused multiply-adds, modifiers."""
