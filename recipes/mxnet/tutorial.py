"""From MXNet's crash course: arrays, and a gradient by autograd."""

from mxnet import autograd, nd

x = nd.array([[1, 2], [3, 4]])
x.attach_grad()
with autograd.record():
    y = 2 * x**2
y.backward()
print(x.grad.asnumpy())
