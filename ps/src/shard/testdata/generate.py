"""Writes the values of `optax.json`, step by step, with Optax 0.2.8: run `python generate.py` in this folder.

The starting values and the gradients are random with fixed seeds. No element is near a tie of Lion's sign.
"""

import json

import jax.numpy as jnp
import numpy as np
import optax

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
