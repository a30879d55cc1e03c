"""Put an image behind ``module load``: modulefiles, wrappers, installation."""
