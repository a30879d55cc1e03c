"""Read ELF files, and simulate the loader; pure."""
