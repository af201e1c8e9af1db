"""Writes `optax.json` with Optax 0.2.8 and `torch.json` with PyTorch 2.15.0: run `python generate.py` in this folder.

The starting values and the gradients are random with fixed seeds. No element is near a tie of Lion's sign.
"""

import json

import jax.numpy as jnp
import numpy as np
import optax
import torch

STEPS = 10
SHAPES = {"dense/kernel": [5, 3], "dense/bias": [3], "norm/scale": [4], "embedding/table": [6, 2]}


def draw(seed):
    """Returns the starting values, and the gradients of every step."""
    random = np.random.default_rng(seed)
    tensors = lambda: {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    return tensors(), [tensors() for _ in range(STEPS)]


def numbers(tensors):
    return {name: [float(str(x)) for x in tensor.ravel()] for name, tensor in tensors.items()}


def case(name, update, start, gradients, values):
    steps = [
        {"gradients": numbers(gradient), "values": numbers(value)}
        for gradient, value in zip(gradients, values)
    ]
    return {"name": name, "update": update, "shapes": SHAPES, "start": numbers(start), "steps": steps}


def by_optax(name, seed, optimizer, update):
    start, gradients = draw(seed)
    params = {key: jnp.array(value) for key, value in start.items()}
    state, values = optimizer.init(params), []
    for gradient in gradients:
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        values.append({key: np.array(value) for key, value in params.items()})
    return case(name, update, start, gradients, values)


def by_torch(name, seed, update, optimizers):
    """`optimizers` returns the optimizers of the parameters; a parameter in none of them is frozen."""
    start, gradients = draw(seed)
    params = {key: torch.nn.Parameter(torch.tensor(value)) for key, value in start.items()}
    all_of_them, values = optimizers(params), []
    for gradient in gradients:
        for key, param in params.items():
            param.grad = torch.tensor(gradient[key])
        for optimizer in all_of_them:
            optimizer.step()
        values.append({key: param.detach().numpy().copy() for key, param in params.items()})
    return case(name, update, start, gradients, values)


def lamb(rate, beta1, beta2, epsilon, decay):
    keys = ["learning_rate", "beta1", "beta2", "epsilon", "weight_decay"]
    update = {"optimizer": {"lamb": dict(zip(keys, [rate, beta1, beta2, epsilon, decay]))}}
    return optax.lamb(rate, beta1, beta2, epsilon, weight_decay=decay), update


def lion(rate, beta1, beta2, decay):
    keys = ["learning_rate", "beta1", "beta2", "weight_decay"]
    update = {"optimizer": {"lion": dict(zip(keys, [rate, beta1, beta2, decay]))}}
    return optax.lion(rate, beta1, beta2, weight_decay=decay), update


def check_no_ties(seed, beta1, beta2):
    start, gradients = draw(seed)
    momentum = {key: np.zeros_like(value) for key, value in start.items()}
    for gradient in gradients:
        for key, m in momentum.items():
            assert np.abs(beta1 * m + (1 - beta1) * gradient[key]).min() > 1e-5, f"seed {seed} has a tie"
            momentum[key] = beta2 * m + (1 - beta2) * gradient[key]


def write(file, cases):
    with open(file, "w") as out:
        json.dump(cases, out, indent=None, separators=(",", ":"))
        out.write("\n")


check_no_ties(3, 0.9, 0.99)
check_no_ties(4, 0.8, 0.95)
write(
    "optax.json",
    [
        by_optax("lamb", 1, *lamb(0.01, 0.9, 0.999, 1e-6, 0.01)),
        by_optax("lamb without weight decay", 2, *lamb(0.1, 0.8, 0.9, 1e-3, 0.0)),
        by_optax("lion", 3, *lion(0.001, 0.9, 0.99, 0.01)),
        by_optax("lion with other decays", 4, *lion(0.05, 0.8, 0.95, 0.5)),
    ],
)
write(
    "torch.json",
    [
        by_torch(
            "sgd with a smaller rate, without a decay, and frozen",
            5,
            {
                "optimizer": {"sgd": {"learning_rate": 0.1}},
                "weight_decay": 0.05,
                "groups": [
                    {"variables": "*/bias", "weight_decay": 0.0},
                    {"variables": "norm/*", "frozen": True},
                    {"variables": "embedding/*", "learning_rate_factor": 0.1},
                    {"variables": "dense/*", "learning_rate_factor": 0.5, "weight_decay": 0.2},
                ],
            },
            lambda params: [
                torch.optim.SGD(
                    [
                        {"params": [params["dense/bias"]], "weight_decay": 0.0},
                        {"params": [params["embedding/table"]], "lr": 0.01},
                        {"params": [params["dense/kernel"]], "lr": 0.05, "weight_decay": 0.2},
                    ],
                    lr=0.1,
                    weight_decay=0.05,
                )
            ],
        ),
        by_torch(
            "adamw that decays matrices only, and another optimizer for one group",
            6,
            {
                "optimizer": {
                    "adamw": {
                        "learning_rate": 0.01,
                        "beta1": 0.9,
                        "beta2": 0.999,
                        "epsilon": 1e-8,
                        "weight_decay": 0.1,
                    }
                },
                "weight_decay_on": "matrices",
                "groups": [
                    {
                        "variables": "embed*",
                        "weight_decay": 0.01,
                        "optimizer": {"momentum": {"learning_rate": 0.05, "momentum": 0.9}},
                    },
                    {"variables": "norm/scal?", "learning_rate_factor": 2.0},
                ],
            },
            lambda params: [
                torch.optim.AdamW(
                    [
                        {"params": [params["dense/kernel"]]},
                        {"params": [params["dense/bias"]], "weight_decay": 0.0},
                        {"params": [params["norm/scale"]], "weight_decay": 0.0, "lr": 0.02},
                    ],
                    lr=0.01,
                    weight_decay=0.1,
                ),
                torch.optim.SGD([params["embedding/table"]], lr=0.05, momentum=0.9, weight_decay=0.01),
            ],
        ),
    ],
)
