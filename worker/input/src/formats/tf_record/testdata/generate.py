"""Writes the TFRecord files for the tests with TensorFlow: run `python generate.py` in this folder.

Features are serialized in the order of their names, so the bytes are the same on every run.
"""

import tensorflow as tf


def example(index):
    feature = {
        "bytes": tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes([index, 0, 255, 128])])),
        "floats": tf.train.Feature(float_list=tf.train.FloatList(value=[index + 0.5, -1.25, 1e-30])),
        "ints": tf.train.Feature(int64_list=tf.train.Int64List(value=[index, -index - 1])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[index % 3])),
        "strings": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"a", b"", "é".encode()])),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature))


for name, compression in [("five.tfrecord", None), ("five.tfrecord.gz", "GZIP")]:
    with tf.io.TFRecordWriter(name, compression) as writer:
        for index in range(5):
            writer.write(example(index).SerializeToString(deterministic=True))

with tf.io.TFRecordWriter("raw.tfrecord") as writer:
    for data in [b"", b"one", bytes(range(256)) * 2]:
        writer.write(data)
