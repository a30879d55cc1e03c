# /// job
# id: pytorch.ddp
# title: Data in parallel
# ///
"""A mini job."""
