"""A kernel while it runs: registers, flow, warps, barriers, memories, counts."""
