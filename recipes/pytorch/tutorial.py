"""From PyTorch's "Learn the basics": a model, a loss, a step of its optimizer."""

import torch
from torch import nn

model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loss = nn.CrossEntropyLoss()(model(torch.rand(4, 4, 4)), torch.tensor([1, 2, 3, 4]))
loss.backward()
optimizer.step()
print(loss.item())
