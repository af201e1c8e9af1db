"""Measures PyTorch's all-reduce over gloo on loopback, one process per worker.

usage: python torch_all_reduce.py --bytes N [--workers N] [--seconds X]

Prints `N us`, the median time of an all-reduce of N bytes of float32 on the slowest worker.
"""

import argparse
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARM_UP = 20
EXCHANGES_MAX = 50_000


def run(rank, args, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(max(1, os.cpu_count() // args.workers))
    dist.init_process_group("gloo", rank=rank, world_size=args.workers)
    tensor = torch.zeros(args.bytes // 4)

    def exchange(count):
        times = []
        for _ in range(count):
            began = time.perf_counter()
            dist.all_reduce(tensor)
            times.append(time.perf_counter() - began)
        median = torch.tensor([sorted(times)[count // 2]], dtype=torch.float64)
        dist.all_reduce(median, op=dist.ReduceOp.MAX)
        return median.item()

    count = max(WARM_UP, min(EXCHANGES_MAX, int(args.seconds / exchange(WARM_UP))))
    median = exchange(count)
    if rank == 0:
        print(f"{median * 1e6:.1f} us", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(run, args=(args, port), nprocs=args.workers)


if __name__ == "__main__":
    main()
