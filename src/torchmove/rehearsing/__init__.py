"""Rehearse a training step on a device that need not be there: every line that would fail, in one run.

run                 a rehearsal from beginning to end
result              the Rehearsal and its findings
given               which objects are state, and which are data
decisions           devices that were decided before, on a machine without the device
setup               stand-ins in the place of tensors, and the tensors again afterwards
restore             everything else that the step may have changed, as it was
tensors             the stand-in: a tensor with a shape and a device
device              the dispatch mode: every operation, checked and computed
shapes              what a stand-in holds: values, or a shape alone
device_rules        which operations take tensors of more than one device
function_overrides  what torch's Python functions do with "cuda"
runtime             torch.cuda and torch.accelerator
precision           autocast and gradient scalers
memory              what the step takes on the device
provenance          where a tensor came from, and where in the user's code we are
origins             what to say of a tensor on the wrong device
sources             what the user's statements assign; evaluation and placements read them
captured            what the step reaches by the names in its code
threads             threads and pools that the step uses
plain               the step without the simulation
"""
