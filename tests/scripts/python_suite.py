"""Runs the tests of modules of CPython's own suite and writes a journal of them.

    python_suite.py MODULE...

The file named by TOEHOLD_SUITE_JOURNAL gets a line when a test begins, and one when it ends. Tests
that the file knows already are left out, so that a run that hung in one can be gone on with.
"""

import os
import sys
import unittest

from test import support

# What asks for the outside world, or for hours, is left out.
support.use_resources = ["cpu", "subprocess", "socketpair", "walltime"]
support.verbose = 1
# Parts of names: vsock reaches the machine around this one, whose answers are not a test's.
LEFT_OUT = ["VSOCK"]
# Modules that ask for the network and use this host only.
LOCAL = ["test.test_socketserver", "test.test_timeout"]


class Journal(unittest.TestResult):
    def __init__(self, file, only):
        super().__init__()
        self.file = file
        self.only = only
        self.told = False

    def say(self, word, test):
        self.file.write(f"{word} {name_of(test)}\n")
        self.file.flush()

    def startTest(self, test):
        super().startTest(test)
        self.told = False
        self.say("begin", test)

    def tell(self, word, test, error=None):
        # The first word counts: a test with an error in a part and another in its end has failed.
        if error is not None:
            print(name_of(test), self._exc_info_to_string(error, test), flush=True)
        if not self.told:
            self.say(word, test)
            self.told = True

    def addSuccess(self, test):
        self.tell("passed", test)

    def addExpectedFailure(self, test, error):
        self.tell("passed", test)

    def addUnexpectedSuccess(self, test):
        self.tell("failed", test)

    def addSkip(self, test, reason):
        print("skipped", name_of(test), reason, flush=True)
        self.tell("skipped", test)

    def addError(self, test, error):
        self.tell("failed", test, error)

    def addFailure(self, test, error):
        self.tell("failed", test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.tell("failed", test, error)


def name_of(test):
    # The place of a class's or module's own fixture has spaces.
    return test.id().replace(" ", "_").removeprefix("test.")


def flatten(suite):
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from flatten(part)
        else:
            yield part


def without(suite, known, only):
    """The suite less the tests that are known, its classes together as they were."""
    kept = unittest.TestSuite()
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            kept.addTest(without(part, known, only))
        elif any(word in name_of(part) for word in LEFT_OUT):
            pass
        elif name_of(part) not in known and (not only or name_of(part) in only):
            kept.addTest(part)
    return kept


def main():
    path = os.environ["TOEHOLD_SUITE_JOURNAL"]
    only = set(os.environ.get("TOEHOLD_SUITE_ONLY", "").split())
    known = set()
    if os.path.exists(path):
        known = {line.split(" ", 1)[1].strip() for line in open(path)}
    os.chdir(os.environ.get("TMPDIR", "/tmp"))
    # Child processes of tests import modules of the suite.
    sys.argv = ["python_suite.py"]
    if set(MODULES) <= set(LOCAL):
        support.use_resources.append("network")
    with open(path, "a") as file:
        try:
            suite = unittest.defaultTestLoader.loadTestsFromNames(MODULES)
        except unittest.SkipTest as reason:
            # The module is for another platform.
            print("skipped", *MODULES, reason, flush=True)
            file.write("skipped module\n")
            return
        result = Journal(file, only)
        without(suite, known, only).run(result)


if __name__ == "__main__":
    MODULES = sys.argv[1:]
    main()
