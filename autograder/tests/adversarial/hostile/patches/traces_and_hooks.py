# Installs a trace function, a profiler, an import hook and an audit hook that raise, after the work as well.
# marks: 0
# feedback: an exception
import sys

__all__ = ["pass_around"]


class Hook:
    def find_spec(self, *_):
        raise ImportError("nothing more is imported")


def refuse(*_):
    raise RuntimeError


def pass_around(tensor):
    sys.meta_path.insert(0, Hook())
    sys.modules.clear()
    sys.setrecursionlimit(50)
    sys.addaudithook(refuse)
    sys.settrace(refuse)
    compile("1", "", "exec")
    return tensor
