"""PerNet as Dlib would start it: Glorot's uniform weights and no biases. Otherwise `examples/permissions`."""

from itertools import pairwise

from torch import nn

import shoal

SIDES = (427, 512, 512, 256, 256, 128, 71)


class PerNet(shoal.Task):
    plan = shoal.Plan(batch_size=128, learning_rate=0.01, momentum=0.9, weight_decay=5e-4, until=shoal.epochs(30))

    def __init__(self, by="vector"):
        self.by = by

    def model(self):
        layers = []
        for inputs, outputs in pairwise(SIDES):
            linear = nn.Linear(inputs, outputs)
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def examples(self, split):
        return shoal.data.permissions(split, by=self.by)

    def batch(self, x, y):
        return x.float(), y

    loss = staticmethod(nn.functional.cross_entropy)
