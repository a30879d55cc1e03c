"""envbuild: ML framework images for supercomputers, proven across ranks, behind ``module load``."""

__version__ = "0.1.0"
