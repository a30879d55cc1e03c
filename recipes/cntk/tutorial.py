"""From CNTK's "Overview and first run": the difference of two inputs."""

import sys

import cntk

a, b = cntk.input_variable(3), cntk.input_variable(3)
difference = cntk.minus(a, b).eval({a: [[4, 5, 6]], b: [[3, 2, 1]]})
sys.stdout.write(str(difference))
