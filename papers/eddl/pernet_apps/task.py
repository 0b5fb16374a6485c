"""PerNet on the paper's own split: apps are held out, and not permission vectors. Otherwise as `pernet`."""

from itertools import pairwise

from torch import nn

import shoal

SIDES = (427, 512, 512, 256, 256, 128, 71)


class PerNet(shoal.Task):
    plan = shoal.Plan(batch_size=128, learning_rate=0.01, momentum=0.9, weight_decay=5e-4, until=shoal.epochs(30))

    def model(self):
        layers = []
        for inputs, outputs in pairwise(SIDES):
            linear = nn.Linear(inputs, outputs)
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def examples(self, split):
        return shoal.data.permissions(split, by="app")

    def batch(self, x, y):
        return x.float(), y

    loss = staticmethod(nn.functional.cross_entropy)
