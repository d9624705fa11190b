"""The cuda device: PyCUDA in a worker process. The only place that imports a CUDA library."""
