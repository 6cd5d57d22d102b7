"""Rehearse a training step on a device that need not be there: every line that would fail, in one run.

run                 a rehearsal from beginning to end
result              the Rehearsal and its findings
captured            which objects are state or data, and what the step reaches by the names in its code
decisions           devices that the program chose before, on a machine without the device
sources             what the statements of the program assign
evaluation          the values and devices that its expressions have on a machine with the device
replacement         stand-ins or copies in the place of tensors, and the tensors again afterwards
restore             everything else that the step may change, restored
tensors             the stand-in: a tensor with a shape and a device
device              the dispatch mode: every operation, checked and computed, and the memory that it takes
operators           what an ATen operator takes and returns: devices, dtypes, shapes
function_overrides  torch's Python functions called with the device
runtime             what torch.cuda, torch.accelerator and libraries say of the device
precision           autocast and gradient scalers
concurrency         threads, pools and worker processes of the step
files               what the step saves and loads
provenance          where a tensor came from, and where in the user's code the step is
origins             what to say of a tensor on the wrong device, and the fix
"""
