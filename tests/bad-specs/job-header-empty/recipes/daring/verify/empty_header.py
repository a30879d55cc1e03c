# /// job
#
# ///
print('a job')
