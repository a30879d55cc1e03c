# /// job
# id: daring.sum
# title: sums
# ///
# /// job
# id: daring.more
# title: more sums
# ///
print('a job')
