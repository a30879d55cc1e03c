"""Read squashfs file systems without mounting them, and splice several into one."""
