"""Formats figures and Markdown tables."""
from statistics import median


def spread(values, digits=2):
    """Formats the median, with the smallest and largest in brackets: 1.20 (1.10-1.35)."""
    middle = f"{median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def ms(seconds):
    """Formats times in milliseconds, with useful digits only."""
    values = [1000 * one for one in seconds]
    return spread(values, 2 if median(values) < 10 else 1 if median(values) < 100 else 0)


def whole(values):
    """Formats the median of counts."""
    return f"{round(median(values)):,}"


def markdown(heads, rows):
    """Formats a table with aligned columns. All columns but the first hold figures."""
    table = [heads, *rows]
    widths = [max(3, *(len(row[column]) for row in table)) for column in range(len(heads))]

    def line(cells):
        padded = [cells[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:]))]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([line(heads), rule, *map(line, rows)])
