"""Rounds of measurements, which measure every way once, in a new random order."""
import random


def rounds_of(ways, rounds):
    """Measures each way once in every round. Maps the names of the ways to their figures."""
    figures = {name: [] for name in ways}
    for _ in range(rounds):
        for name in random.sample(list(ways), len(ways)):
            figures[name].append(ways[name]())
    return figures
