"""Measures TensorFlow 2 with ParameterServerStrategy on loopback: a chief in this process, workers and one ps.

usage: python tensorflow_ps.py dense [--workers N] [--seconds X]
       python tensorflow_ps.py mlp [--workers N] [--seconds X]

`dense` prints `push N Gbit/s` and `pull N Gbit/s`: 25 variables of 4 MB on the ps, of which each step of a worker pushes
gradients for all, which plain gradient descent applies on the ps, or pulls all. `mlp` prints `N examples/s` of training
the MLP 784-512-512-10 asynchronously, with batches of 64.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

VARIABLES = 25
ELEMENTS = 1_000_000
BATCH = 64
WARM_UP_STEPS = 5
# The chief schedules this many steps, and then looks at the clock.
STEPS_AT_ONCE = {"dense": 5, "mlp": 200}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=sorted(STEPS_AT_ONCE))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    return parser.parse_args()


def free_addresses(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def config(cluster, job, index):
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


def serve():
    """Serves as the task that TF_CONFIG names, until standard input is closed, and so until the chief ends."""
    import threading

    import tensorflow as tf

    own = json.loads(os.environ["TF_CONFIG"])
    job, index = own["task"]["type"], own["task"]["index"]
    server = tf.distribute.Server(
        tf.train.ClusterSpec(own["cluster"]), job_name=job, task_index=index, protocol="grpc"
    )

    def end_with_the_chief():
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=end_with_the_chief, daemon=True).start()
    server.join()


def steps_per_second(coordinator, function, args, at_once, seconds):
    for _ in range(WARM_UP_STEPS):
        coordinator.schedule(function, args=args)
    coordinator.join()
    steps, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        for _ in range(at_once):
            coordinator.schedule(function, args=args)
        coordinator.join()
        steps += at_once
    return steps / (time.monotonic() - began)


def dense(tf, strategy, coordinator, options):
    with strategy.scope():
        variables = [tf.Variable(tf.zeros((ELEMENTS,))) for _ in range(VARIABLES)]
    # The gradients come from a data set of the worker: constants would be folded, and kept on the ps.
    gradients = tuple(tf.fill((ELEMENTS,), 1e-3) for _ in range(VARIABLES))
    of_worker = coordinator.create_per_worker_dataset(
        lambda: tf.data.Dataset.from_tensors(gradients).repeat()
    )
    iterator = iter(of_worker)

    @tf.function
    def push(iterator):
        for variable, gradient in zip(variables, next(iterator)):
            # The operation runs where the variable is, on the ps.
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=1e-6, delta=gradient)
        return 0.0

    @tf.function
    def pull(iterator):
        # The sum of the first elements is computed on the worker, so all values must travel to it.
        return tf.add_n([tf.identity(variable.read_value())[0] for variable in variables])

    bits = VARIABLES * ELEMENTS * 4 * 8
    for name, function in (("push", push), ("pull", pull)):
        rate = steps_per_second(
            coordinator, function, (iterator,), STEPS_AT_ONCE["dense"], options.seconds
        )
        print(f"{name} {rate * bits / 1e9:.3f} Gbit/s", flush=True)


def mlp(tf, strategy, coordinator, options):
    layers = tf.keras.layers
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                layers.Input((784,)),
                layers.Dense(512, activation="relu"),
                layers.Dense(512, activation="relu"),
                layers.Dense(10),
            ]
        )
        variables = model.trainable_variables
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    @tf.function
    def step():
        images = tf.random.stateless_normal((BATCH, 784), (1, 2))
        labels = tf.zeros((BATCH,), tf.int32)
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True)) / BATCH
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(0.01 * gradient)
        return loss

    rate = steps_per_second(coordinator, step, (), STEPS_AT_ONCE["mlp"], options.seconds)
    print(f"{rate * BATCH:.0f} examples/s", flush=True)


def main():
    options = arguments()
    chief, ps, *workers = free_addresses(2 + options.workers)
    cluster = {"chief": [chief], "ps": [ps], "worker": workers}
    children = []
    try:
        for job in ("ps", "worker"):
            for index in range(len(cluster[job])):
                environment = dict(os.environ, TF_CONFIG=config(cluster, job, index), SERVES="1")
                children.append(
                    subprocess.Popen(
                        [sys.executable, __file__, *sys.argv[1:]],
                        env=environment,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                )
        os.environ["TF_CONFIG"] = config(cluster, "chief", 0)
        import tensorflow as tf

        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        measure = {"dense": dense, "mlp": mlp}[options.workload]
        measure(tf, strategy, coordinator, options)
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()
    # The coordinator's threads would wait for the workers, which have ended.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    serve() if os.environ.get("SERVES") else main()
