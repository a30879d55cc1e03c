# /// job
# id: pytorch.x
# title: x
# ///
