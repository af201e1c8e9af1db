"""Measures a training step in PyTorch: the models of `cargo bench --bench step`, without a cluster.

usage: python torch_step.py [--device cuda|cpu] [--models cnn,mlp,transformer] [--mode eager|compile]
                            [--precision fp32|tf32|bf16|fp16] [--transfers] [--tiny] [--rounds N] [--seconds X] [--json FILE]

A step is forward and backward; the update belongs to the ps. With `--transfers`, each step also copies all values to the
device before it and all gradients from it, as a replica does. `bf16` and `fp16` are autocast, without a scale of the loss. The JSON has the fields of the benchmark.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

WARM_UP_STEPS = 5
STEPS_MIN = 3
CHARACTERS = 256
NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}
MATRIX = {False: 4096, True: 32}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", default="cnn,mlp,transformer")
    parser.add_argument("--mode", choices=["eager", "compile"], default="eager")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16", "fp16"], default="fp32")
    parser.add_argument("--transfers", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json")
    return parser.parse_args()


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        batch, length, width = x.shape
        split = [
            layer(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        x = F.scaled_dot_product_attention(*split, is_causal=True)
        return self.output(x.transpose(1, 2).reshape(batch, length, width))


class Residual(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.layers(x)


class Positions(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)

    def forward(self, x):
        return x + self.positions


def cnn(tiny):
    first, second, hidden = (2, 3, 8) if tiny else (32, 64, 128)
    batch = 2 if tiny else 256
    model = nn.Sequential(
        nn.Conv2d(1, first, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(25 * second, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )
    return model, torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))


def mlp(tiny):
    width, classes, batch = (24, 10, 4) if tiny else (4096, 1000, 1024)
    model = nn.Sequential(
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )
    return model, torch.randn(batch, width), torch.randint(classes, (batch,))


def transformer(tiny):
    length, width, heads, blocks, batch = (8, 16, 2, 1, 2) if tiny else (256, 512, 8, 6, 32)

    def block():
        attention = Residual(nn.LayerNorm(width), Attention(width, heads))
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        return [attention, Residual(nn.LayerNorm(width), up, nn.GELU(approximate="tanh"), down)]

    model = nn.Sequential(
        nn.Embedding(CHARACTERS, width),
        Positions(length, width),
        *(layer for _ in range(blocks) for layer in block()),
        nn.LayerNorm(width),
        nn.Linear(width, CHARACTERS),
    )
    return model, *(torch.randint(CHARACTERS, (batch, length)) for _ in range(2))


def synchronise(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matrix_rate(device, precision, tiny):
    """Returns the rate of a product of square matrices in TFLOP/s."""
    size = MATRIX[tiny]
    dtype = NARROW.get(precision, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    for products in (3, 20):
        synchronise(device)
        began = time.perf_counter()
        for _ in range(products):
            a @ b
        synchronise(device)
        seconds = (time.perf_counter() - began) / products
    return 2 * size**3 / seconds / 1e12


def flops_of(step):
    """Returns the floating-point operations of the products and convolutions of a step, as PyTorch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def measure(name, options, device, rate):
    model, features, labels = {"cnn": cnn, "mlp": mlp, "transformer": transformer}[name](options.tiny)
    model = model.to(device)
    # Training moves values and gradients between the device and pinned memory of the host.
    pinned = device.type == "cuda"
    host = [
        (p, torch.empty(p.shape, pin_memory=pinned), torch.empty(p.shape, pin_memory=pinned))
        for p in model.parameters()
    ]
    host_batch = [t.pin_memory() if pinned else t for t in (features, labels)]

    def step(run):
        if options.transfers:
            with torch.no_grad():
                for parameter, value, _ in host:
                    parameter.copy_(value, non_blocking=True)
        x, y = (t.to(device, non_blocking=True) for t in host_batch)
        for parameter, _, _ in host:
            parameter.grad = None
        with torch.autocast(device.type, NARROW.get(options.precision), enabled=options.precision in NARROW):
            logits = run(x)
            loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), y.reshape(-1))
        loss.backward()
        if options.transfers:
            for parameter, _, gradient in host:
                gradient.copy_(parameter.grad, non_blocking=True)
        # A replica returns the loss of each step.
        return loss.item()

    for parameter, value, _ in host:
        value.copy_(parameter.detach())
    flops = flops_of(lambda: step(model))
    began = time.perf_counter()
    run = torch.compile(model) if options.mode == "compile" else model
    step(run)
    synchronise(device)
    compile_s = time.perf_counter() - began
    for _ in range(WARM_UP_STEPS):
        step(run)
    rounds = []
    if pinned:
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(max(1, options.rounds)):
        steps, began = 0, time.perf_counter()
        while steps < STEPS_MIN or time.perf_counter() - began < options.seconds:
            step(run)
            steps += 1
        synchronise(device)
        rounds.append((time.perf_counter() - began) * 1e3 / steps)
    median, batch = statistics.median(rounds), len(features)
    tflop_s = flops / (median * 1e9)
    figures = {
        "system": f"torch {torch.__version__} {options.mode}{' with transfers' if options.transfers else ''}",
        "model": name,
        "device": torch.cuda.get_device_name(device) if pinned else f"cpu, {torch.get_num_threads()} threads",
        "precision": options.precision,
        "tiny": options.tiny,
        "batch": batch,
        "step_ms": {"median": median, "min": min(rounds), "max": max(rounds)},
        "examples_per_second": batch / median * 1e3,
        "flops": flops,
        "tflop_s": tflop_s,
        "matrix_tflop_s": rate,
        "share_of_matrix_rate": tflop_s / rate,
        "program_s": None,
        # The first step, with the compilation.
        "kernels_s": compile_s,
        "arena_bytes": torch.cuda.max_memory_allocated(device) if pinned else None,
        "variables_bytes": sum(4 * p.numel() for p in model.parameters()),
        "operations": [],
    }
    print(f"{name:12} {batch:5}  {median:.3f} ms ({min(rounds):.3f} to {max(rounds):.3f}), {tflop_s:.3f} TFLOP/s", flush=True)
    return figures


def main():
    options = arguments()
    device = torch.device(options.device)
    torch.manual_seed(1)
    tf32 = options.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    rate = matrix_rate(device, options.precision, options.tiny)
    print(f"a product of square matrices: {rate:.3f} TFLOP/s", flush=True)
    figures = [measure(name, options, device, rate) for name in options.models.split(",")]
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)


if __name__ == "__main__":
    main()
