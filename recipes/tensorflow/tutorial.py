"""From TensorFlow's quickstart for beginners, on made-up digits."""

import numpy as np
import tensorflow as tf

layers = tf.keras.layers
model = tf.keras.models.Sequential([layers.Flatten(), layers.Dense(8, activation="relu"), layers.Dense(10)])
model.compile("adam", loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(np.zeros((32, 4, 4), np.float32), np.arange(32) % 10, epochs=1, verbose=0)
print(model(np.zeros((1, 4, 4), np.float32)).numpy())
