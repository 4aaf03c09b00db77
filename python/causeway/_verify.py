"""`causeway.verify`: the kernels of this machine against the float64 oracle, and what came of it as an object."""

import dataclasses
import html
import json
import os
import pathlib
import sys

from causeway import _native
from causeway._integer import integer

_SUITES = ("conv1d-first", "conv1d-last")


@dataclasses.dataclass(frozen=True)
class Failure:
    """A case or a random call that was wrong."""

    name: str
    complaints: list[str]
    """What was wrong, a sentence each."""
    smallest: str | None = None
    """A random call made as small as it still fails: a suite for `causeway verify --suite` and for `suite=`, as TOML."""
    drawn: str | None = None
    """The same as it was drawn."""

    def __str__(self):
        lines = [self.name, *(f"  {line}" for line in self.complaints)]
        if self.smallest is not None:
            lines += ["as small as it fails, for suite=:", "", self.smallest]
        return "\n".join(lines)


class Report:
    """What a verification showed, and what it did not show.

    ``print`` gives a summary, and a notebook a table. `facts` has everything; docs/reports.md says what is in it.
    """

    def __init__(self, text, complaints):
        self.json = text
        self.facts = json.loads(text)
        # Empty for suites.
        self._random = self.facts.get("random") or {}
        calls = {call["case"]: call for call in self._random.get("failures", [])}
        self.failures = [
            Failure(name, lines, calls.get(name, {}).get("smallest"), calls.get(name, {}).get("drawn"))
            for name, lines in complaints
        ]

    @property
    def passed(self):
        """True if something was checked and nothing was wrong."""
        return self.facts["passed"]

    @property
    def counts(self):
        """How many calls ran, by operation; of suites, how many cases."""
        if self._random:
            return dict(self._random["calls"])
        counts = {}
        for case in self.facts["cases"]:
            counts[case["operation"]] = counts.get(case["operation"], 0) + 1
        return counts

    @property
    def count(self):
        """How many calls, or cases of suites, ran."""
        return sum(self.counts.values())

    @property
    def elements(self):
        """Elements of results that were compared with the oracle."""
        if self._random:
            return self._random["elements"]
        outputs = (output for case in self.facts["cases"] for output in case["outputs"])
        return sum(output["comparison"]["elements"] for output in outputs)

    @property
    def worst(self):
        """The largest part of its error bound that an element of each result used; above 1 is wrong."""
        if self._random:
            return dict(self._random["worst"])
        worst = {}
        for case in self.facts["cases"]:
            for output in case["outputs"]:
                # Infinity has no number in JSON.
                part = output["comparison"]["fraction"]
                worst[output["name"]] = max(worst.get(output["name"], 0.0), float("inf") if part is None else part)
        return worst

    @property
    def device(self):
        """The device, as it names itself."""
        return self.facts["device"]

    @property
    def seed(self):
        """What decided the draws of random calls; None of suites."""
        return self._random.get("seed")

    @property
    def seconds(self):
        """How long it took."""
        return self.facts["seconds"]

    @property
    def evidence(self):
        """What was done, a sentence each."""
        return list(self.facts["evidence"])

    @property
    def non_claims(self):
        """What this does not show, a sentence each."""
        return list(self.facts["non_claims"])

    def save(self, directory):
        """Writes run.json, report.md and report.html to a directory, as `causeway verify --report` does."""
        if not isinstance(directory, (str, os.PathLike)):
            raise TypeError(f"directory is {directory!r}: expected a str or a path")
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        run = directory / "run.json"
        run.write_text(self.json, encoding="utf-8")
        for name in ("report.md", "report.html"):
            if _native.main(["causeway", "report", str(run), "--out", str(directory / name)]) != 0:
                raise OSError(f"{directory / name} cannot be written")

    def _verdict(self):
        what = "cases" if self.seed is None else "random calls"
        seed = "" if self.seed is None else f" (seed {self.seed})"
        wrong = len(self.failures)
        count = f"{self.count:,} {what}{seed} on {self.device} in {self.seconds:.1f} s"
        if wrong:
            return f"{wrong:,} WRONG of {count}"
        return f"all right: {count}" if self.count else f"nothing was checked: {count}"

    def __repr__(self):
        return f"<causeway.verify: {self._verdict()}>"

    def __str__(self):
        lines = [self._verdict()]
        lines += [f"  {name:<22}{count:>8,}" for name, count in self.counts.items()]
        lines.append(f"  {'elements compared':<22}{self.elements:>8,}")
        lines += ["", *map(str, self.failures)] if self.failures else []
        return "\n".join(lines)

    def _repr_html_(self):
        """For notebooks: the verdict, what ran, what was wrong, and both lists of sentences."""
        text = html.escape
        colour = "#1a7f37" if self.passed else "#cf222e"

        def table(title, rows):
            cells = "".join(f"<tr><td>{text(name)}</td><td>{text(value)}</td></tr>" for name, value in rows)
            return f"<table><thead><tr><th colspan=2>{title}</th></tr></thead><tbody>{cells}</tbody></table>"

        def sentences(title, lines):
            items = "".join(f"<li>{text(line)}</li>" for line in lines)
            return f"<details><summary>{title}</summary><ul>{items}</ul></details>"

        counts = [(name, f"{count:,}") for name, count in self.counts.items()]
        counts.append(("elements compared", f"{self.elements:,}"))
        # Ways that have to give the same bits are either without an error or wrong.
        worst = [(name, f"{part:.1%} of its bound") for name, part in sorted(self.worst.items()) if part > 0]
        failures = "".join(f"<pre>{text(str(failure))}</pre>" for failure in self.failures)
        return (
            f"<p><strong style='color:{colour}'>{text(self._verdict())}</strong></p>"
            f"<div style='display:flex;gap:2em;align-items:start'>{table('ran', counts)}"
            f"{table('largest error', worst)}</div>{failures}"
            f"{sentences('evidence', self.evidence)}{sentences('what this does not show', self.non_claims)}"
        )


# Of calls and repeats, of elements, as the command has them, and of seconds.
_MOST, _MOST_ELEMENTS, _MOST_SECONDS = 2**32 - 1, 2**31, 1e9


def _names(argument, value):
    """One name or several as a list."""
    try:
        names = [os.fspath(name) for name in ([value] if isinstance(value, (str, os.PathLike)) else value)]
    except TypeError:
        raise TypeError(f"{argument} is {value!r}: expected a name or several") from None
    if not names:
        raise ValueError(f"{argument} is {value!r}: expected a name or several")
    return names


def _count(argument, value, lowest, highest):
    """An int within bounds, and no bool, which was meant for another argument."""
    if isinstance(value, bool):
        raise TypeError(f"{argument} is {value!r}: expected an int, {lowest} to {highest}")
    return integer(argument, value, lowest, highest)


def _random(value):
    """How many random calls."""
    try:
        return _count("random", value, 1, _MOST)
    except (TypeError, ValueError) as error:
        # What comes first could have been meant for another argument.
        fix = f"for a suite, pass suite={value!r}; for a device, pass device={value!r}"
        hint = f"; {fix}" if isinstance(value, (str, os.PathLike)) else ""
        raise type(error)(f"{error}, the number of random calls{hint}") from None


def _seconds(value):
    if value is None:
        return None
    expected = f"expected a number, 0 or more, up to {_MOST_SECONDS:.0e}; leave it out for no limit"
    if not isinstance(value, (int, float)):
        raise TypeError(f"seconds is {value!r}: {expected}")
    if not 0 <= value <= _MOST_SECONDS:
        raise ValueError(f"seconds is {value!r}: {expected}")
    return value


def _shown(done, asked, wrong):
    """Progress on a line of its own, as long as it lasts."""
    failed = f", {wrong} wrong" if wrong else ""
    print(f"\r{done} of {asked}{failed} ", end="", file=sys.stderr, flush=True)


def verify(random, suite, case, repeat, seed, seconds, op, elements, device, threads, progress):
    """See `causeway.verify`."""
    if random is not None:
        random = _random(random)
    if case is not None and not isinstance(case, str):
        raise TypeError(f"case is {case!r}: expected a str, a part of the names of cases")
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise TypeError(f"progress is {progress!r}: expected True, False or a function of three numbers")
    if suite is None and (case is not None or repeat != 1):
        raise ValueError(f"{'case' if case is not None else 'repeat'} is for a suite: name one with suite=")
    if suite is not None:
        # As the command has it.
        given = {"random": random, "seed": None if seed == 1 else seed, "seconds": seconds, "op": op, "elements": elements}
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} is {value!r}, which is for random calls: leave out {name}, or suite")
    arguments = dict(
        suites=[] if suite is None else _names("suite", suite),
        case=case,
        repeats=_count("repeat", repeat, 1, _MOST),
        random=(1000 if random is None else random) if suite is None else None,
        seed=_count("seed", seed, 0, 2**64 - 1),
        seconds=_seconds(seconds),
        operations=[] if op is None else _names("op", op),
        elements=None if elements is None else _count("elements", elements, 1, _MOST_ELEMENTS),
        device=str((os.environ.get("CAUSEWAY_DEVICE") or "best") if device is None else device),
        threads=_count("threads", threads, 0, _native.MOST_THREADS),
    )
    if progress is None:
        progress = sys.stderr is not None and sys.stderr.isatty()
    shown = _shown if progress is True else progress or None
    try:
        return Report(*_native.verify(**arguments, progress=shown))
    finally:
        if shown is _shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
