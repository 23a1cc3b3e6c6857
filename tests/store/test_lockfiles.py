"""The lock files, and what a fork does to them."""

from __future__ import annotations

import os
from pathlib import Path

from ownloop.store.lockfiles import LockFiles


def test_a_child_by_fork_does_not_keep_a_dead_workers_lock(tmp_path: Path):
    said, stay = os.pipe(), os.pipe()
    worker = os.fork()
    if worker == 0:  # a worker, whose tool starts a child (multiprocessing does so), and which dies before it
        files = LockFiles(tmp_path)
        with files.opening():
            files.take("w1")
            if os.fork() == 0:
                os.close(stay[1])
                os.write(said[1], b"here")
                os.read(stay[0], 1)  # until the test ends
                os._exit(0)
        os._exit(0)
    try:
        assert os.read(said[0], 4) == b"here"
        os.waitpid(worker, 0)
        others = LockFiles(tmp_path)
        with others.opening():
            assert not others.is_held("w1")
            others.take("w1")
        others.let_all_go()
    finally:
        for handle in (*said, *stay):
            os.close(handle)


def test_a_workers_lock_survives_the_end_of_its_child(tmp_path: Path):
    files = LockFiles(tmp_path)
    with files.opening():
        files.take("w1")
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert LockFiles(tmp_path).is_held("w1")
    files.let_all_go()
    assert not LockFiles(tmp_path).is_held("w1")
