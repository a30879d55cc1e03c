"""Results of benchmarks: their statistics, their file, and what they are compared with."""
