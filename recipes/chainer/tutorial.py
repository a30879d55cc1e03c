"""From Chainer's "Define-by-Run": a function of a variable, and its gradient."""

import chainer
import numpy as np

x = chainer.Variable(np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32))
y = x**2 - 2 * x + 1
y.grad = np.ones((2, 3), dtype=np.float32)
y.backward()
print(x.grad)
