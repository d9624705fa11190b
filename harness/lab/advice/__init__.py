"""The course notes' recommendations, compared with the fastest kernels."""
