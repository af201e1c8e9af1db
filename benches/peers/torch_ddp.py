"""Measures PyTorch's DistributedDataParallel over gloo on loopback, one process per worker.

usage: python torch_ddp.py mlp|cnn [--workers N] [--seconds X]

Prints `N examples/s` of training the MLP 784-512-512-10 or the CNN 32C3-P2-64C3-P2-128-10 synchronously, with batches of 64
for each worker. The cores are divided among the workers.
"""

import argparse
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

BATCH = 64
WARM_UP_STEPS = 20
# The workers look at the clock together after this many steps.
STEPS_AT_ONCE = 50


def mlp():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1600, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def work(rank, options, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(max(1, os.cpu_count() // options.workers))
    dist.init_process_group("gloo", rank=rank, world_size=options.workers)
    model = nn.parallel.DistributedDataParallel({"mlp": mlp, "cnn": cnn}[options.model]())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(BATCH, 1, 28, 28), torch.zeros(BATCH, dtype=torch.long)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    for _ in range(WARM_UP_STEPS):
        step()
    dist.barrier()
    steps, began = 0, time.monotonic()
    going = torch.ones(1)
    while going.item() > 0:
        for _ in range(STEPS_AT_ONCE):
            step()
        steps += STEPS_AT_ONCE
        # All workers must agree on the last step.
        going = torch.tensor([float(time.monotonic() - began < options.seconds)])
        dist.broadcast(going, 0)
    took = time.monotonic() - began
    if rank == 0:
        print(f"{steps * BATCH * options.workers / took:.0f} examples/s", flush=True)
    # DDP must not outlive the connections that its threads use.
    del model, optimizer
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["mlp", "cnn"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    mp.spawn(work, args=(options, port), nprocs=options.workers)


if __name__ == "__main__":
    main()
