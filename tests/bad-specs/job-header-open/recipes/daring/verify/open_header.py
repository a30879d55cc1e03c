# /// job
# id: daring.sum
# title: sums
print('a job')
# ///
