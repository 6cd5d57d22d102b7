"""The device module: what torch asks of one, and what a test needs to watch memory and make it fail."""

import contextlib

import torch


class TwinDevice:
    """A `device` may be an index, a string or a torch.device; None is the current one, unless said otherwise."""

    _initialized = True

    def __init__(self, native):
        self._native = native
        self.current_device = native.current_device
        self.allocations = native.allocations
        self.default_generators = tuple(native.default_generator(index) for index in range(2))

    def is_available(self):
        return True

    def is_initialized(self):
        return True

    def device_count(self):
        return 2

    def set_device(self, device):
        self._native.set_device(self._index(device))

    @contextlib.contextmanager
    def device(self, device):
        """Makes `device` the current one for a while."""
        previous = self.current_device()
        self.set_device(device)
        try:
            yield
        finally:
            self.set_device(previous)

    def synchronize(self, device=None):
        """Nothing to wait for: all work is done by the time a call returns."""

    def _is_in_bad_fork(self):
        return False

    def get_amp_supported_dtype(self):
        return [torch.float16, torch.bfloat16]

    def manual_seed(self, seed):
        self.default_generators[self.current_device()].manual_seed(seed)

    def manual_seed_all(self, seed):
        for generator in self.default_generators:
            generator.manual_seed(seed)

    def get_rng_state(self, device=None):
        return self.default_generators[self._index(device)].get_state()

    def set_rng_state(self, state, device=None):
        self.default_generators[self._index(device)].set_state(state)

    def mem_get_info(self, device=None):
        """(free, total) bytes. The total is the limit where one is set, else more than a test will use."""
        return self._native.free_and_total(self._index(device))

    def bytes_in_use(self, device=None):
        """Bytes allocated now; on both devices together if `device` is None."""
        return sum(self._native.bytes_in_use(index) for index in self._indices(device))

    def limit_bytes(self, limit, device=None):
        """Allocations that would take a device past `limit` bytes raise; -1: no limit. None: each device."""
        for index in self._indices(device):
            self._native.limit(index, limit)

    def fail_at(self, step):
        """The `step`-th allocation from now (1: the next) raises torch.OutOfMemoryError, once; 0: none will.

        Allocations of zero bytes are not counted, neither here nor by `allocations`.
        """
        self._native.fail_at(step)

    def fail_copy_at(self, step):
        """The `step`-th copy from now (1: the next) raises RuntimeError, once; 0: none will.

        A copy is one tensor copied from or to a twin device; one within the same device counts as well.
        """
        self._native.fail_copy_at(step)

    def _indices(self, device):
        return range(self.device_count()) if device is None else [self._index(device)]

    def _index(self, device):
        index = device if device is None or isinstance(device, int) else torch.device(device).index
        if index is None:
            return self.current_device()
        if not 0 <= index < self.device_count():
            raise RuntimeError(f"twin: no device with index {index}, there are {self.device_count()}")
        return index
