"""Formats figures and Markdown tables."""
from statistics import median


def spread(values, digits=2):
    """The median, and in brackets the smallest and the largest: 1.20 (1.10-1.35)."""
    middle = f"{median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def ms(seconds):
    """Times in milliseconds, with as many digits as are worth reading."""
    values = [1000 * one for one in seconds]
    return spread(values, 2 if median(values) < 10 else 1 if median(values) < 100 else 0)


def whole(values):
    """The median of counts."""
    return f"{round(median(values)):,}"


def markdown(heads, rows):
    """A table; its columns are aligned for those who read the text itself. All but the first hold figures."""
    table = [heads, *rows]
    widths = [max(3, *(len(row[column]) for row in table)) for column in range(len(heads))]

    def line(cells):
        padded = [cells[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:]))]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([line(heads), rule, *map(line, rows)])
