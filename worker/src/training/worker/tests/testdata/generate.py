"""Writes `accumulation.json` with PyTorch 2.15.0: run `python generate.py` in this folder.

A small network is trained by plain gradient descent. The gradients of several batches are accumulated before each
step, each with the loss divided by the number of batches. The examples and the starting values are random with a
fixed seed.
"""

import json

import torch

SEED, EXAMPLES, INPUTS, WIDTH = 11, 50, 3, 4
BATCH, BATCHES, STEPS, RATE = 4, 3, 12, 0.1


def numbers(tensor):
    return [float(str(x)) for x in tensor.detach().numpy().ravel()]


torch.manual_seed(SEED)
features, labels = torch.randn(EXAMPLES, INPUTS), torch.randn(EXAMPLES)
hidden = torch.nn.Parameter(torch.randn(INPUTS, WIDTH))
output = torch.nn.Parameter(torch.randn(WIDTH, 1))
start = [numbers(hidden), numbers(output)]
optimizer = torch.optim.SGD([hidden, output], lr=RATE)
steps, drawn = [], 0
for _ in range(STEPS):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(BATCHES):
        # An epoch may end within a batch.
        batch = [example % EXAMPLES for example in range(drawn, drawn + BATCH)]
        drawn += BATCH
        predicted = (torch.tanh(features[batch] @ hidden) @ output).reshape(-1)
        loss = torch.nn.functional.mse_loss(predicted, labels[batch]) / BATCHES
        loss.backward()
        total += loss.item()
    optimizer.step()
    steps.append({"loss": total, "values": [numbers(hidden), numbers(output)]})
case = {
    "batch": BATCH,
    "batches": BATCHES,
    "learning_rate": RATE,
    "inputs": INPUTS,
    "width": WIDTH,
    "features": numbers(features),
    "labels": numbers(labels),
    "start": start,
    "steps": steps,
}
with open("accumulation.json", "w") as out:
    json.dump(case, out, separators=(",", ":"))
    out.write("\n")
