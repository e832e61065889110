"""Measurements against stock PyTorch.

    step/               `fullstride bench step`: a training step of some models
    compare/            `fullstride compare`: the steps of a recipe, by the same processes
    kernels/            `fullstride bench kernels`: every kernel; rows/ has one file an op
    measure.py          timing by turns, and the spread of the ratios
    conditions.py       where, when and on what
"""
