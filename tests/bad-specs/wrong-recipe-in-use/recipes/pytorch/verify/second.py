# /// job
# id: pytorch.x
# title: y
# ///
