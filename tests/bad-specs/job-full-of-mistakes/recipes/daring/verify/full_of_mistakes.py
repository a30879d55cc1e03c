"""A job."""
# /// job
# id: ddp
# oracle: averging
# expect: {sum: 3, "a b": x}
# compare_with_single: {losses: 0}
# same_on_all_ranks: sum
# devices: [cpu, tpu]
# measures: {words_per_s: {higher_is_better: true}}
# tile: a sum
# controls:
#   no averaging: []
#   half a step: {fails: [weight first], least_ranks: 3}
#   "a: b": [sum]
# ///
print('a job')
