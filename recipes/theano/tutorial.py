"""From Theano's "Baby steps": the sum of two scalars, compiled."""

import theano.tensor as T  # noqa: N812
from theano import function

x, y = T.dscalar("x"), T.dscalar("y")
f = function([x, y], x + y)
print(f(16.3, 12.1))
