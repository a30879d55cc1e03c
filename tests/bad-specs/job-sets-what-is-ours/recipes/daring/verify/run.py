# /// job
# id: daring.sum
# title: sets variables
# environment: {OMP_NUM_THREADS: "4", FI_PROVIDER: tcp}
# expect: {sum: n, ranks: n}
# gpus_per_rank: 2
# variants: [cpu, ayn]
# controls:
#   another thread: {fails: [sum], environment: {OMP_NUM_THREADS: "2"}}
# ///
print('a job')
