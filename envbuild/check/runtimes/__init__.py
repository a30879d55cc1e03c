"""What runtimes other than Apptainer do to an image: one module a runtime. Pure."""
