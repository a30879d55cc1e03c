# /// job
# id: daring.sum
# title: sums: and more
# ///
print('a job')
