"""Malware families by permission, with EDDL's PerNet: `shoal train examples/permissions`."""

from itertools import pairwise

from torch import nn

import shoal

SIDES = (427, 512, 512, 256, 256, 128, 71)


class Permissions(shoal.Task):
    plan = shoal.Plan(batch_size=128, learning_rate=0.1, momentum=0.9, until=shoal.epochs(30))

    def model(self):
        layers = []
        for inputs, outputs in pairwise(SIDES):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def examples(self, split):
        return shoal.data.permissions(split)

    def batch(self, x, y):
        return x.float(), y

    loss = staticmethod(nn.functional.cross_entropy)
