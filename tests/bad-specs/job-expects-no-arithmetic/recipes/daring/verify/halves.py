print('a job')
