# /// job
# id: daring.sum
# title: sums
# expect:
#   sum: n*(n+1)//2
#   half: n / 2
#   # Right for two ranks, and wrong for three.
#   rest: n//(3-n)
#   size: m
#   open: (n
# ///
print('a job')
