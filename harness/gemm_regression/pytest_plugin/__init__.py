"""What pytest loads: the plugin and the tests that judge a project's kernels."""
