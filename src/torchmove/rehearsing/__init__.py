"""Rehearse a training step on a simulated device: report every line that would fail on the real one, in one run.

run                 a rehearsal from beginning to end
result              the Rehearsal and its findings
given               which objects are state, and which are data
decisions           devices that were chosen earlier, on a machine without the device
setup               replaces tensors by stand-ins, and restores the tensors afterwards
restore             restores everything else that the step may have changed
tensors             the stand-in: a tensor with a shape and a device
device              the dispatch mode: every operation, checked and computed
shapes              what a stand-in holds: values, or a shape alone
device_rules        which operations take tensors of more than one device
function_overrides  torch's Python functions on the simulated device
runtime             torch.cuda and torch.accelerator
precision           autocast and gradient scalers
memory              the device memory that the step uses
provenance          the origin of a tensor, and the current line of the user's code
origins             describes a tensor on the wrong device, and the fix
sources             the assignments in the user's files, which evaluation and placements read
captured            the objects that the step reaches by names in its code
threads             threads and pools that the step starts
plain               the step without the simulation
"""
