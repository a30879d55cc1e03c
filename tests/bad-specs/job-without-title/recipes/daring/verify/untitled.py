# /// job
# id: daring.sum
# expect: {sum: n}
# ///
print('a job')
